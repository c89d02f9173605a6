"""The Pod Security Standards as a table: which fields of a pod each level restricts, and to what.

https://kubernetes.io/docs/concepts/security/pod-security-standards/, of Kubernetes 1.34, for Linux.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

BASELINE, RESTRICTED = "baseline", "restricted"
LEVELS = (BASELINE, RESTRICTED)  # what baseline forbids, restricted forbids, too

Pod = dict[str, Any]

_ADDED = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
_SYSCTLS = {
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"),
    *("net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
    *("net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
}
_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"),
}
_SELINUX = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def containers(pod: Pod) -> Iterator[Pod]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(kind, [])


def reached(where: Pod, path: str) -> Iterator[Any]:
    """What lies at a path such as ``ports[*].hostPort``: of each item, None where a part is missing."""
    part, _, rest = path.partition(".")
    inner = where.get(part.removesuffix("[*]"))
    for each in (inner or []) if part.endswith("[*]") else [inner]:
        if not rest:
            yield each
        elif isinstance(each, dict):
            yield from reached(each, rest)
        elif "[*]" not in rest:
            yield None


def every(scope: str, path: str, allowed: Callable[[Any], bool]) -> Callable[[Pod], bool]:
    """Each value at the path, in the pod itself, in all containers, or in both, is allowed."""

    def holds(pod: Pod) -> bool:
        places = [*([pod] if "pod" in scope else []), *(containers(pod) if "containers" in scope else [])]
        return all(allowed(value) for place in places for value in reached(place, path))

    return holds


def set_everywhere(path: str, allowed: Callable[[Any], bool]) -> Callable[[Pod], bool]:
    """What a container leaves out, its pod sets; and the values are allowed."""

    def holds(pod: Pod) -> bool:
        (of_pod,) = reached(pod, path)
        values = [value for each in containers(pod) for value in reached(each, path)]
        return (of_pod is None or allowed(of_pod)) and all(
            allowed(of_pod if value is None else value) for value in values
        )

    return holds


def one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


class Control(NamedTuple):
    """One row of the standard."""

    level: str
    name: str
    holds: Callable[[Pod], bool]


_off = one_of(None, False)
CONTROLS = (
    Control(BASELINE, "HostProcess", every("pod containers", "securityContext.windowsOptions.hostProcess", _off)),
    *(Control(BASELINE, "Host Namespaces", every("pod", each, _off)) for each in ("hostNetwork", "hostPID", "hostIPC")),
    Control(BASELINE, "Privileged Containers", every("containers", "securityContext.privileged", _off)),
    Control(BASELINE, "Capabilities", every("containers", "securityContext.capabilities.add[*]", _ADDED.__contains__)),
    Control(BASELINE, "HostPath Volumes", every("pod", "volumes[*].hostPath", one_of(None))),
    Control(BASELINE, "Host Ports", every("containers", "ports[*].hostPort", one_of(None, 0))),
    *(
        Control(BASELINE, "Host Probes / Lifecycle Hooks", every("containers", f"{hook}.{way}.host", one_of(None, "")))
        for hook in (*_PROBES, "lifecycle.postStart", "lifecycle.preStop")
        for way in ("httpGet", "tcpSocket")
    ),
    Control(
        BASELINE,
        "AppArmor",
        every("pod containers", "securityContext.appArmorProfile.type", one_of(None, "RuntimeDefault", "Localhost")),
    ),
    Control(BASELINE, "SELinux", every("pod containers", "securityContext.seLinuxOptions.type", _SELINUX.__contains__)),
    Control(BASELINE, "SELinux", every("pod containers", "securityContext.seLinuxOptions.user", one_of(None, ""))),
    Control(BASELINE, "SELinux", every("pod containers", "securityContext.seLinuxOptions.role", one_of(None, ""))),
    Control(BASELINE, "/proc Mount Type", every("containers", "securityContext.procMount", one_of(None, "Default"))),
    Control(
        BASELINE,
        "Seccomp",
        every("pod containers", "securityContext.seccompProfile.type", one_of(None, "RuntimeDefault", "Localhost")),
    ),
    Control(BASELINE, "Sysctls", every("pod", "securityContext.sysctls[*].name", _SYSCTLS.__contains__)),
    Control(RESTRICTED, "Volume Types", every("pod", "volumes[*]", lambda volume: {*volume} <= {"name", *_VOLUMES})),
    Control(
        RESTRICTED,
        "Privilege Escalation",
        every("containers", "securityContext.allowPrivilegeEscalation", lambda value: value is False),
    ),
    Control(
        RESTRICTED, "Running as Non-root", set_everywhere("securityContext.runAsNonRoot", lambda value: value is True)
    ),
    Control(
        RESTRICTED,
        "Running as Non-root user",
        every("pod containers", "securityContext.runAsUser", lambda user: user != 0),
    ),
    Control(
        RESTRICTED,
        "Seccomp",
        set_everywhere("securityContext.seccompProfile.type", one_of("RuntimeDefault", "Localhost")),
    ),
    Control(
        RESTRICTED,
        "Capabilities",
        every("containers", "securityContext.capabilities.drop", lambda dropped: "ALL" in (dropped or [])),
    ),
    Control(
        RESTRICTED,
        "Capabilities",
        every("containers", "securityContext.capabilities.add[*]", one_of("NET_BIND_SERVICE")),
    ),
)


def violated(pod: Pod, level: str) -> set[str]:
    """Names of the controls of the level that the pod does not keep."""
    levels = LEVELS[: LEVELS.index(level) + 1]
    return {each.name for each in CONTROLS if each.level in levels and not each.holds(pod)}
