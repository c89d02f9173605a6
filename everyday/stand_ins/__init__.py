"""Stand-ins for packages that the tests do not install; `make everyday` compares their signatures."""
