"""A disk that fills up soon."""

import subprocess


def small_disk(at, kib=96, options=None):
    """Command that runs another one with a disk of `kib` KiB (or with these options of tmpfs) mounted at this folder; None if the kernel does not allow it."""
    for unshare in (["unshare", "-m"], ["unshare", "-rm"]):
        cmd = [
            *unshare,
            "sh",
            "-c",
            f'mount -t tmpfs -o {options or f"size={kib}k"},mode=700 none "$0" && exec "$@"',
            str(at),
        ]
        try:
            if subprocess.run([*cmd, "true"], capture_output=True).returncode == 0:
                return cmd
        except OSError:
            pass
    return None
