"""Ranks on two hosts: namespaces with separate network, host name and /dev/shm, connected only by
MPI's messages. The bits equal those of ranks that are threads. And: a lost process, a cut cable.
Needs root; part of make check-all."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import threading

import pytest

from test_mpi import model, mpi  # noqa: F401
from test_mpi import (
    LLMC,
    STILL,
    Mpi,
    begin_request,
    common,
    end,
    fails_until_it_ends,
    names_the_lost,
    processes_of,
    serve,
)
from waiting import HANG, wait_for

pytestmark = [
    pytest.mark.skipif("LLMC_CHECK_ALL" not in os.environ, reason="LLMC_CHECK_ALL is not set"),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]
CLONE_NEWNET = 0x40000000


class Hosts:
    """Two hosts with a cable between them. agent HOST COMMAND acts as ssh."""

    def __init__(self, folder):
        self.name, self.link = (
            [f"{what}{os.getpid()}{k}" for k in (0, 1)] for what in ("llmch", "lv")
        )
        self.address, self.held, self.folder = ["10.77.0.1", "10.77.0.2"], [], folder
        try:
            self.build()
        except BaseException:
            self.close()
            raise

    def build(self):
        folder = self.folder
        for n in self.name:
            self.do("ip", "netns", "add", n)
        self.do("ip", "link", "add", self.link[0], "type", "veth", "peer", "name", self.link[1])
        for n, link, address in zip(self.name, self.link, self.address):
            self.do("ip", "link", "set", link, "netns", n)
            self.do("ip", "-n", n, "addr", "add", f"{address}/24", "dev", link)
            self.do("ip", "-n", n, "link", "set", link, "up")
            self.do("ip", "-n", n, "link", "set", "lo", "up")
        names = folder / "hosts"
        names.write_text(
            "127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for a, n in zip(self.address, self.name))
        )
        self.agent = folder / "agent"
        lines = [
            "#!/bin/sh",
            "while case $1 in -*) ;; *) false ;; esac; do shift; done",
            "host=$1; shift",
            "case $host in",
        ]
        for n in self.name:
            p = subprocess.Popen(
                [
                    "nsenter",
                    f"--net=/run/netns/{n}",
                    "unshare",
                    "-m",
                    "-u",
                    "sh",
                    "-c",
                    f"hostname {n} && mount -t tmpfs tmpfs /dev/shm && mount --bind {names} /etc/hosts && echo up && exec sleep 100000",
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            self.held.append(p)
            if p.stdout.readline() != "up\n":
                raise OSError(f"{n} does not start")
            lines.append(f'{n}) exec nsenter -t {p.pid} -n -m -u sh -c "$*" ;;')
        self.agent.write_text("\n".join([*lines, "esac", "exit 1", ""]))
        self.agent.chmod(0o755)

    @staticmethod
    def do(*cmd):
        subprocess.run(cmd, check=True, capture_output=True)

    def cable(self, state):
        self.do("ip", "-n", self.name[1], "link", "set", self.link[1], state)

    def close(self):
        for p in self.held:
            p.kill()
            p.communicate()
        for n in self.name:
            subprocess.run(["ip", "netns", "del", n], capture_output=True)


class Far(Mpi):
    """mpirun on the first host; ranks alternate between both."""

    def __init__(self, near, hosts):
        self.__dict__ |= near.__dict__
        self.hosts = hosts
        self.env = {k: v for k, v in near.env.items() if k != "OMPI_MCA_osc"} | dict(
            PRTE_ALLOW_RUN_AS_ROOT="1", PRTE_ALLOW_RUN_AS_ROOT_CONFIRM="1"
        )
        self.env["PATH"] = os.path.dirname(self.run) + ":" + self.env["PATH"]

    def start(self, ranks, *args, env=(), **more):
        env, names = dict(env), self.hosts.name
        if self.kind == "openmpi":
            far = [
                "--prtemca",
                "plm_ssh_agent",
                self.hosts.agent,
                "--prtemca",
                "prte_if_include",
                "10.77.0.0/24",
                "--mca",
                "btl_tcp_if_include",
                "10.77.0.0/24",
                "--host",
                ",".join(f"{n}:4" for n in names),
                "--map-by",
                "node",
                "--oversubscribe",
                "--bind-to",
                "none",
            ]
            for name in (
                "LD_LIBRARY_PATH",
                "OPAL_PREFIX",
                "LLMC_PIN",
                "LLMC_CACHE",
                "LLMC_COMM_TIMEOUT",
            ):
                far += ["-x", name]
        else:
            far = [
                "-launcher",
                "ssh",
                "-launcher-exec",
                self.hosts.agent,
                "-hosts",
                ",".join(names),
                "-ppn",
                "1",
                "-genvall",
            ]
        text = " ".join(
            f"'{a}'" for a in (self.run, *far, "-n", ranks, os.path.abspath(LLMC), *args)
        )
        return subprocess.Popen(
            [self.hosts.agent, names[0], f"cd {os.getcwd()} && exec {text}"],
            env=self.env | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )


@pytest.fixture(scope="module")
def far(mpi, tmp_path_factory):  # noqa: F811
    try:
        hosts = Hosts(tmp_path_factory.mktemp("hosts"))
    except (OSError, subprocess.CalledProcessError) as e:
        pytest.skip(f"no namespaces: {e}")
    yield Far(mpi, hosts)
    hosts.close()


def on(host, work):
    """Call work() on a thread in the host's network."""
    done = []

    def run():
        with open(f"/run/netns/{host}") as f:
            assert ctypes.CDLL(None).setns(f.fileno(), CLONE_NEWNET) == 0
        try:
            done.append((work(), None))
        except BaseException as e:  # raised again below
            done.append((None, e))

    t = threading.Thread(target=run)
    t.start()
    t.join()
    if done[0][1]:
        raise done[0][1]
    return done[0][0]


def test_bits_are_those_of_threads(far, model, llmc, tmp_path):  # noqa: F811
    for ranks in (2, 3):
        llmc(*common(model), "--tp", ranks, "--logits", tmp_path / "want.npy")
        tokens = json.loads(llmc.out)["tokens"]
        out, _ = far(ranks, *common(model), "--logits", tmp_path / "have.npy", "--chunk", "7")
        assert json.loads(out)["tokens"] == tokens
        assert (tmp_path / "have.npy").read_bytes() == (tmp_path / "want.npy").read_bytes(), ranks


@pytest.mark.parametrize("when", ["decode", "prompt", "idle"])
@pytest.mark.parametrize("what", ["KILL", "STOP", "cable"])
def test_a_lost_host(far, model, tmp_path, what, when):  # noqa: F811
    """Rank 1 is on the other host. Rank 0 reports which rank was lost and where, running requests
    and /health fail, and the job ends on both hosts."""
    if what == "cable" and far.kind == "mpich":
        pytest.skip("its transport finds that both hosts are one kernel, and needs no cable")
    log = tmp_path / "log"

    def run():
        p, port = serve(
            far, model, "--log-file", log, ranks=2, env={"LLMC_COMM_TIMEOUT": str(STILL)}
        )
        try:
            pids = processes_of(p)
            assert set(pids) == {0, 1}
            c = begin_request(port, when)
            if what == "cable":
                far.hosts.cable("down")
            else:
                os.kill(pids[1], getattr(signal, f"SIG{what}"))
            fails_until_it_ends(port)
            wait_for(lambda: not processes_of(p), every=0.1, what="the end of every rank")
            if c:
                c.close()
            if what != "cable":  # launchers wait for each other until TCP times out
                p.communicate(timeout=HANG)
                assert p.returncode != 0
        finally:
            end(p)
            with contextlib.suppress(subprocess.CalledProcessError):
                far.hosts.cable("up")

    on(far.hosts.name[0], run)
    if what == "STOP" and far.kind == "mpich":
        assert names_the_lost(log, 1, 2, far.hosts.name[1])
