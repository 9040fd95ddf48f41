"""Release files from the programs of this build: the same bytes twice, and each kind installs and runs. Those of `make release` run in an empty root."""

import base64
import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/release"))
import binaries  # noqa: E402
import libraries  # noqa: E402
import pack  # noqa: E402

BUILD = ROOT / os.environ.get("BUILD", "build")
ARCH = os.uname().machine


def make(folder, patch):
    """Pack all kinds below a folder; return its files by name."""
    patch.setattr(binaries, "build_folder", lambda: folder)
    patch.setattr(pack, "EFFORT", 0)
    patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for name, row in libraries.rows().items():
        source = folder / "sources" / f"{name}-{row['version']}" / row["text"]
        source.parent.mkdir(parents=True)
        source.write_text(f"licence of {name}\n")
    env = {**os.environ, "HOST_LLMC": str(BUILD / "llmc")}
    subprocess.run(["tools/install_pages.sh", folder / "share"], check=True, cwd=ROOT, env=env)
    (folder / "kernels").mkdir()
    (folder / "kernels/0123.so").write_bytes(b"a kernel")
    (folder / "built").mkdir()
    for name in ("llmc", "libllmc.so"):
        subprocess.run(["strip", "-o", folder / "built" / name, BUILD / name], check=True)
    top = pack.stage(ARCH, folder / "built", folder / "share", folder / "kernels")
    for kind in (pack.tarball, pack.deb, pack.wheel):
        kind(ARCH, top)
    pack.sums()
    return {p.name: p for p in (folder / "dist").iterdir()}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    if not shutil.which("dpkg-deb"):
        pytest.skip("dpkg-deb is not installed")
    with pytest.MonkeyPatch.context() as patch:
        yield make(tmp_path_factory.mktemp("release"), patch)


def named(files, end):
    return next(p for n, p in files.items() if n.endswith(end))


def test_two_builds_give_the_same_bytes(files, tmp_path, monkeypatch):
    old = os.umask(0o077)
    try:
        again = make(tmp_path, monkeypatch)
    finally:
        os.umask(old)
    assert len(files) == 5 and files.keys() == again.keys()
    for name, path in files.items():
        assert path.read_bytes() == again[name].read_bytes(), name


def test_the_sums_are_those_of_the_files(files):
    folder = files["SHA256SUMS"].parent
    r = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True
    )
    assert r.returncode == 0 and r.stdout.count(": OK\n") == 4


def test_a_tarball_runs_where_it_is_unpacked(files, tmp_path):
    with tarfile.open(named(files, ".tar.xz")) as t:
        assert {(m.uid, m.uname, m.mtime) for m in t} == {(0, "root", 1700000000)}
    shutil.unpack_archive(named(files, ".tar.xz"), tmp_path)
    (top,) = tmp_path.iterdir()
    r = subprocess.run([top / "bin/llmc", "--version"], capture_output=True, text=True)
    assert r.stdout == f"llmc {binaries.version()}\n"
    assert (top / "lib/llmc/kernels/0123.so").read_bytes() == b"a kernel"
    assert (top / "share/man/man1/llmc-run.1").exists()
    env = {**os.environ, "PKG_CONFIG_PATH": str(top / "lib/pkgconfig")}
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "llmc"], capture_output=True, text=True, env=env
    ).stdout.split()
    host = tmp_path / "host"
    subprocess.run(["cc", "examples/host.c", *flags, "-o", host], check=True, cwd=ROOT)
    env = {**os.environ, "LD_LIBRARY_PATH": str(top / "lib")}
    r = subprocess.run([host, "nowhere.gguf", "x"], capture_output=True, text=True, env=env)
    assert "nowhere.gguf: no such file" in r.stderr


def test_a_debian_package_has_its_fields_and_files(files, tmp_path):
    deb = named(files, ".deb")
    fields = subprocess.run(["dpkg-deb", "-f", deb], capture_output=True, text=True).stdout
    assert f"Package: llmc\nVersion: {binaries.version()}\n" in fields
    assert "Depends: libc6 (>= 2.28)\n" in fields
    subprocess.run(["dpkg-deb", "-x", deb, tmp_path], check=True)
    listed = subprocess.run(["dpkg-deb", "-c", deb], capture_output=True, text=True).stdout
    assert all(" root/root " in line for line in listed.splitlines())
    r = subprocess.run([tmp_path / "usr/bin/llmc", "--version"], capture_output=True, text=True)
    assert r.stdout == f"llmc {binaries.version()}\n"
    for path in ("share/man/man1/llmc-run.1.gz", "share/doc/llmc/copyright", "lib/libllmc.so.0"):
        assert (tmp_path / "usr" / path).exists()


def test_a_debian_package_installs_into_an_empty_root(files, tmp_path):
    """With no package in it but the oldest glibc that fits, dpkg configures llmc and removes it."""
    if not shutil.which("dpkg", path="/usr/bin"):
        pytest.skip("dpkg is not installed")
    status = tmp_path / "var/lib/dpkg/status"
    for folder in ("info", "updates", "triggers"):
        (status.parent / folder).mkdir(parents=True)
    status.write_text(
        f"""Package: libc6
Status: install ok installed
Maintainer: Test <test@localhost>
Architecture: {pack.DEBIAN[ARCH]}
Version: {binaries.GLIBC}-1
Description: stand-in

"""
    )
    dpkg = ["/usr/bin/dpkg", f"--root={tmp_path}", "--force-not-root", "--force-script-chrootless"]
    env = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}

    def call(*args):
        return subprocess.run([*dpkg, *args], capture_output=True, text=True, env=env)

    r = call("-i", named(files, ".deb"))
    assert r.returncode == 0 and "Setting up llmc" in r.stdout, r.stderr
    assert "Status: install ok installed" in call("-s", "llmc").stdout
    r = subprocess.run(
        [tmp_path / "usr/bin/llmc", "run", "nowhere.gguf"], capture_output=True, text=True
    )
    assert "nowhere.gguf: no such file" in r.stderr
    r = call("--purge", "llmc")
    assert r.returncode == 0, r.stderr
    left = [p for p in tmp_path.rglob("*llmc*") if p.is_file()]
    assert not left


@pytest.fixture(scope="module")
def site(files, tmp_path_factory):
    """Folder with the installed wheel, and an environment in which Python finds it alone."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", folder, named(files, ".whl")], check=True)
    env = {k: v for k, v in os.environ.items() if k != "LLMC_LIBRARY"}
    return folder, env | {"PYTHONPATH": str(folder)}


def python(site, *args, cwd="/", **more):
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, env=site[1] | more, cwd=cwd
    )


def test_a_wheel_lists_its_files_and_has_the_tag_of_its_glibc(files):
    whl = named(files, ".whl")
    assert whl.name == f"llmc-{binaries.version()}-py3-none-manylinux_2_28_{ARCH}.whl"
    with zipfile.ZipFile(whl) as z:
        record = next(n for n in z.namelist() if n.endswith("/RECORD"))
        rows = list(csv.reader(z.read(record).decode().splitlines()))
        assert {r[0] for r in rows} == set(z.namelist())
        for name, digest, size in rows:
            if name != record:
                data = z.read(name)
                sum_ = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                assert digest == f"sha256={sum_}" and int(size) == len(data)


def test_a_wheel_installs_library_and_command(site):
    r = python(site, "-c", "import llmc; print(llmc.version(), llmc._ffi.lib._name)")
    assert r.stdout.split() == [binaries.version(), str(site[0] / "llmc/_native/lib/libllmc.so")], (
        r.stderr
    )
    r = python(site, "-m", "llmc", "--version")
    assert r.stdout == f"llmc {binaries.version()}\n", r.stderr
    r = subprocess.run([site[0] / "bin/llmc", "--version"], capture_output=True, env=site[1])
    assert r.returncode == 0
    assert (site[0] / "llmc/_native/lib/llmc/kernels/0123.so").exists()


def test_zig_compiles_where_no_other_compiler_is(site, tmp_path):
    """Without cc, gcc and clang in PATH, the compiler of the ziglang package is used."""
    package = tmp_path / "ziglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "zig").write_text(
        f"""#!/bin/sh
echo "$1 $2 $3" >>{tmp_path}/calls
shift 3
PATH=/usr/bin:/bin exec {os.environ.get("LLMC_CC") or "cc"} "$@"
"""
    )
    (package / "zig").chmod(0o755)
    (tmp_path / "empty").mkdir()
    env = {
        "PATH": str(tmp_path / "empty"),
        "LLMC_CACHE": str(tmp_path / "cache"),
        "LLMC_KERNEL_CFLAGS": "-O0",
        "LLMC_CC": "",
        "PYTHONPATH": f"{site[0]}:{tmp_path}",
    }
    code = f"""
import llmc
with llmc.open({str(ROOT / "configs/tiny.yaml")!r}, random_weights=True, arch="generic") as m:
    with m.session() as s:
        print(s.run([1, 2, 3], max_tokens=2)["n_new"])
"""
    r = python(site, "-c", code, **env)
    assert r.stdout == "2\n", r.stderr
    assert (tmp_path / "calls").read_text().startswith(f"cc -target {ARCH}-linux-gnu.2.17\n")
    shutil.rmtree(package)
    shutil.rmtree(tmp_path / "cache")
    r = python(site, "-c", code, **env)
    assert r.returncode != 0 and "no C compiler found" in r.stderr


def test_the_sbom_names_libraries_and_files(files):
    sbom = json.loads(named(files, ".spdx.json").read_text())
    assert sbom["spdxVersion"] == "SPDX-2.3" and sbom["SPDXID"] == "SPDXRef-DOCUMENT"
    assert sbom["creationInfo"]["created"] == "2023-11-14T22:13:20Z"
    assert {p["name"] for p in sbom["packages"]} == {"llmc", *libraries.rows()}
    for p in sbom["packages"]:
        assert p["versionInfo"] and p["licenseDeclared"] and p["downloadLocation"]
    ids = {"SPDXRef-DOCUMENT"} | {x["SPDXID"] for x in (*sbom["packages"], *sbom["files"])}
    for r in sbom["relationships"]:
        assert {r["spdxElementId"], r["relatedSpdxElement"]} <= ids
    with tarfile.open(named(files, ".tar.xz")) as t:
        top = t.getnames()[0]
        for f in sbom["files"]:
            data = t.extractfile(f"{top}/{f['fileName'][2:]}").read()
            for c in f["checksums"]:
                assert hashlib.new(c["algorithm"], data).hexdigest() == c["checksumValue"]
    assert {"./bin/llmc", f"./lib/libllmc.so.{binaries.version()}"} <= {
        f["fileName"] for f in sbom["files"]
    }


def test_a_binary_that_needs_too_much_is_refused():
    with pytest.raises(SystemExit, match="needs libjansson|needs glibc"):
        binaries.check(BUILD / "llmc")


def test_a_changed_source_archive_is_refused(tmp_path):
    for row in libraries.rows().values():
        (tmp_path / row["archive"]).write_text("x")
    with pytest.raises(SystemExit, match="wrong SHA-256"):
        libraries.fetch(tmp_path)


def empty_root(folder):
    """A root with glibc and nothing else."""
    text = subprocess.run(["ldd", "/bin/true"], capture_output=True, text=True).stdout
    libc = next(w for w in text.split() if "libc.so.6" in w and w.startswith("/"))
    loader = next(w for w in text.split() if "ld-linux" in w and w.startswith("/"))
    for name in ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"):
        target = folder / "lib" / name
        target.parent.mkdir(exist_ok=True)
        shutil.copy(Path(libc).parent / name, target)
    (folder / "lib64").mkdir()
    shutil.copy(loader, folder / "lib64" / Path(loader).name)
    (folder / "tmp").mkdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_a_release_runs_in_an_empty_root_without_a_compiler(smollm2, tmp_path):
    built = sorted((ROOT / "build/release/dist").glob(f"*-linux-{ARCH}.tar.xz"))
    if "LLMC_CHECK_ALL" not in os.environ or not built:
        pytest.skip("make check-all, after make release-tarball")
    empty_root(tmp_path)
    with tarfile.open(built[-1]) as t:
        top = t.getnames()[0]
    shutil.unpack_archive(built[-1], tmp_path)
    shutil.copy(smollm2, tmp_path / "model.gguf")
    r = subprocess.run(
        [
            "/usr/sbin/chroot",
            tmp_path,
            f"/{top}/bin/llmc",
            "run",
            "/model.gguf",
            "-n",
            "8",
            "--prompt",
        ]
        + ["The capital of France is"],
        capture_output=True,
        text=True,
        env={"LLMC_CACHE": "/cache", "PATH": "/none"},
    )
    assert "Paris" in r.stdout, r.stderr
