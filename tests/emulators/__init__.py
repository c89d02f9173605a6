"""Google Cloud's telemetry services on loopback, with the rules that they enforce and the faults that they have.

`google.GoogleEmulator` is the services, `html_proxy.HtmlProxy` a proxy in the way, `token_server.TokenServer` where
credentials are exchanged, `picture` what arrived. The rules stand in `trace_rules`, `metric_rules`, `descriptor_rules`
and `otlp_rules`.
"""
