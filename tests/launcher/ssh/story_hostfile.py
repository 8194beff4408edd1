# covers: launcher/ssh
"""--hostfile: the agents of all hosts are started from one, over a stand-in for ssh and over a real sshd; their output comes back, signals go out,
the key shows nowhere, and whatever ends here, nothing is left there.
run: waits
run: timeout 300
"""

import contextlib
import hashlib
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

import hosts
import support
import training
from support import DTRUN, Job, alive, lines_of, run, script, wait_lines, wait_until

pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")
NUMBERS = 'echo "$(hostname) $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR"'
STAY = 'echo "$$ $RANK $WORLD_SIZE" >>"$1"; while [ ! -e "$2" ]; do sleep 0.05; done'
SSHD = shutil.which("sshd", path="/usr/sbin:/sbin:/usr/bin")


class Place:
    """Two hosts, a file that names them, and a command that reaches them."""

    def __init__(self, net, folder, ssh):
        self.net, self.folder, self.ssh = net, folder, ssh
        self.file = str(folder / "hosts")
        with open(self.file, "w") as f:
            f.write("# where the job runs\na slots=2\n\nb slots=2   # the second\n")

    def args(self, *rest, options=()):
        return [f"--hostfile={self.file}", f"--ssh={self.ssh}", *options, *map(str, rest)]

    def inside(self):
        """Processes on the two hosts, but for the daemons that were there before."""
        return [int(p) for h in self.net.hosts for p in hosts.tool("ip", "netns", "pids", h.namespace).split()
                if int(p) not in self.daemons and alive(int(p))]

    def wait_gone(self):
        wait_until(lambda: not self.inside(), "the end of all processes on the hosts")

    daemons = ()


def stand_in(net, folder):
    """COMMAND HOST LINE, with the environment of a fresh login."""
    words = "".join(f"    {h.name}) exec env -i HOME=/root PATH=\"$PATH\" " + " ".join(f"'{w}'" for w in h.prefix()) + ' sh -c "$2" ;;\n' for h in net.hosts)
    return script(folder, "reach", f'case $1 in\n{words}    *) echo "reach: $1: unknown host" >&2; exit 255 ;;\nesac\n')


@pytest.fixture(scope="module")
def reach(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reach")
    with hosts.network(2) as net:
        yield Place(net, folder, stand_in(net, folder))


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    """A daemon on each host with keys of its own."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("no sshd: scripts/setup.sh --slurm installs it")
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    with open(folder / "sshd_config", "w") as f:
        f.write(f"Port 2222\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nPidFile none\nUsePAM no\nStrictModes no\n"
                "PasswordAuthentication no\nPermitRootLogin prohibit-password\n")
    with open(folder / "ssh_config", "w") as f:
        f.write(f"Host *\n  Port 2222\n  User root\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n  BatchMode yes\n  LogLevel ERROR\n"
                f"  StrictHostKeyChecking no\n  UserKnownHostsFile {folder}/known\n  GlobalKnownHostsFile /dev/null\n")
    with hosts.network(2) as net:
        place = Place(net, folder, f"{' '.join(['ssh', '-F', str(folder / 'ssh_config')])}")
        daemons = [subprocess.Popen([*h.prefix(), SSHD, "-D", "-e", "-f", folder / "sshd_config"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                    stderr=open(folder / f"log-{h.name}", "wb")) for h in net.hosts]
        try:
            for h in net.hosts:
                wait_until(lambda: "on 0.0.0.0 port 2222" in "\n".join(lines_of(folder / f"log-{h.name}")), "sshd")
            place.daemons = [d.pid for d in daemons]
            place.launcher = net.hosts[0]  # ssh itself must be in the network
            yield place
        finally:
            for d in daemons:
                d.kill()
                d.wait()


def start(place, *rest, options=(), **more):
    launcher = getattr(place, "launcher", None)
    args = place.args(*rest, options=options)
    return launcher.job(args, **more) if launcher else Job(args, **more)


def finish(place, *rest, options=(), **more):
    with start(place, *rest, options=options, **more) as job:
        result = job.finish()
        job.wait_gone()
    place.wait_gone()
    return result


@pytest.fixture(params=["reach", "sshd"])
def place(request):
    return request.getfixturevalue(request.param)


def test_agents_on_all_hosts_are_one_job(place):
    result = finish(place, "sh", "-c", NUMBERS)
    assert result.code == 0, result
    assert sorted(result.out.splitlines()) == [f"{'ab'[i // 2]}: {'ab'[i // 2]} {i}/4 {i % 2}/2 {i // 2} a" for i in range(4)], result
    one = finish(place, "sh", "-c", NUMBERS, options=["--nnodes=1", "--nproc_per_node=1"])
    assert one.code == 0 and one.out == "a: a 0/1 0/1 0 127.0.0.1\n" and "key_file" not in one.err, one


def test_hosts_and_slots_are_chosen(place):
    """DeepSpeed's filters: ranks follow the file, and named slots become the devices of the host."""
    words = ("sh", "-c", 'echo "$(hostname) $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE ${CUDA_VISIBLE_DEVICES-all}"')
    for options, expected in [(["--include=b:1@a"], ["a: a 0/3 0/2 all", "a: a 1/3 1/2 all", "b: b 2/3 0/1 1"]),
                              (["--exclude", "a:0"], ["a: a 0/3 0/1 1", "b: b 1/3 0/2 all", "b: b 2/3 1/2 all"]),
                              (["-e", "a"], ["b: b 0/2 0/2 all", "b: b 1/2 1/2 all"])]:
        result = finish(place, *words, options=options, env={"CUDA_VISIBLE_DEVICES": None})
        assert result.code == 0 and sorted(result.out.splitlines()) == expected, (options, result)


@pytest.mark.parametrize("options, text", [
    (["--include=c"], "--hostfile: --include: c: hostname not found in hostfile"),
    (["--exclude=a:2"], "--hostfile: --exclude: a:2: no slot 2 specified on this host, which has 2 (from 0)"),
    (["--exclude=a@b"], "--hostfile: --exclude: no host is left"),
    (["-i", "a", "-e", "b"], "--hostfile: -i and -e: are mutually exclusive; leave one out"),
])
def test_wrong_filters_start_nothing(place, options, text):
    result = finish(place, "sh", "-c", "echo started", options=options)
    assert (result.code, result.out, result.err) == (2, "", f"dtrun: {text}\n"), result


def test_a_byte_0_hides_no_host(tmp_path):
    (tmp_path / "hosts").write_bytes(b"a slots=1\n\0\nb slots=1\n")
    result = run([f"--hostfile={tmp_path}/hosts", "--ssh=false", "true"])
    assert result.code == 2 and result.err == f"dtrun: --hostfile: {tmp_path}/hosts: line 2: a byte 0: no text file; write it anew\n", result


def test_a_filter_needs_a_file():
    result = run(["--include=a", "/bin/true"])
    assert (result.code, result.err) == (2, "dtrun: --include: chooses hosts of a file; add --hostfile=FILE\n"), result


@pytest.mark.parametrize("code, words", [(1, ["sh", "-c", "[ $RANK != 3 ] || exit 7; sleep 600"]), (2, ["/no/such/program"]),
                                         (100, ["--permanent_exit_codes=100", "sh", "-c", "[ $RANK != 0 ] || exit 100; sleep 600"])])
def test_exit_codes(place, code, words):
    options = [w for w in words if w.startswith("--")]
    result = finish(place, *[w for w in words if not w.startswith("--")], options=options)
    assert result.code == code, result


def read(path):
    with contextlib.suppress(OSError):
        with open(path, "rb") as f:
            return f.read()
    return b""


def test_the_key_and_variables_come_unseen(place, tmp_path):
    key = "do-not-show-this-" + os.urandom(12).hex()
    (tmp_path / "key").write_text(key)
    os.chmod(tmp_path / "key", 0o600)
    up, go = tmp_path / "up", tmp_path / "go"
    with start(place, "sh", "-c", f'[ "$NCCL_DEBUG$HOME" = "WARN and \'quotes\'$HOME" ] || exit 9; {STAY}', "x", up, go, options=[f"--key_file={tmp_path}/key"],
               env={"NCCL_DEBUG": "WARN and 'quotes'", "OTHER_SECRET": "stays-here"}) as job:
        wait_lines(up, 4)
        seen = place.inside()
        assert len(seen) >= 8, seen
        for pid in seen:
            text = read(f"/proc/{pid}/cmdline") + read(f"/proc/{pid}/environ")
            assert key.encode() not in text, (pid, text)
            assert b"stays-here" not in text or pid in {job.pid, *support.children(job.pid)}, (pid, text)
            words = [w for w in text.replace(b"=", b"\0").replace(b" ", b"\0").split(b"\0") if len(w) == 64 and all(c in b"0123456789abcdef" for c in w)]
            assert not words, (pid, words)
        go.touch()
        result = job.finish()
    assert result.code == 0 and "no --key_file" not in result.err and key not in result.out + result.err, result
    place.wait_gone()


ALL_BYTES = bytes(range(1, 256)) * 2


def test_variables_arrive_byte_by_byte_and_secrets_show_nowhere(place, tmp_path):
    """By themselves, asked for by name, and with a value; no process anywhere has a secret in its command line, ours that was given it included."""
    up, go, told = tmp_path / "up", tmp_path / "go", tmp_path / "told"
    secret = "do-not-show-this-" + os.urandom(12).hex()
    line = f'env -0 >"{told}.$RANK"; {STAY}'
    options = ["--export=MY_ODD,HF_TOKEN", f"--export=WANDB_API_KEY={secret},MY_LIST=a\\,b", "-x", "MY_PLAIN=1=1"]
    extra = {"HF_TOKEN": secret, "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "OTHER": "stays"}
    with start(place, "sh", "-c", line, "x", up, go, options=options, env={**extra, "MY_ODD": os.fsdecode(ALL_BYTES)}) as job:
        wait_lines(up, 4)
        ours = {job.pid, *support.marked(job.marker)}
        for pid in [*ours, *place.inside()]:
            if os.fsencode(secret) in read(f"/proc/{pid}/cmdline"):
                raise AssertionError((pid, read(f"/proc/{pid}/cmdline")))
        go.touch()
        result = job.finish()
    assert result.code == 0 and secret not in result.out + result.err, result
    place.wait_gone()
    wanted = {b"MY_ODD": ALL_BYTES, b"HF_TOKEN": secret.encode(), b"WANDB_API_KEY": secret.encode(), b"MY_LIST": b"a,b", b"MY_PLAIN": b"1=1",
              b"GLOO_SOCKET_IFNAME": b"lo", b"TP_SOCKET_IFNAME": b"lo", b"OTHER": None}
    for rank in range(4):
        got = dict(x.split(b"=", 1) for x in read(f"{told}.{rank}").split(b"\0") if x)
        assert {k: got.get(k) for k in wanted} == wanted, rank


def test_dry_run_shows_what_goes_where(tmp_path):
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    words = [f"--hostfile={tmp_path}/hosts", "-x", "MY_VAR=x y,MY_KEY=secret-1,tail=secret-3", "--dry_run"]
    result = run([*words, "/bin/true"], env={"NCCL_DEBUG": "INFO", "HF_TOKEN": "secret-2", "OTHER": "1"})
    passed = result.out.partition("\nvariables that go from here to every host\n")[2].partition("\nranks ")[0].splitlines()
    for line in ("MY_KEY=(hidden)", "MY_VAR='x y'", "tail=(hidden)", "NCCL_DEBUG=INFO", "HF_TOKEN=(hidden)"):
        assert " " * 10 + line in passed, (line, result)
    assert result.code == 0 and "secret-" not in result.out + result.err and "OTHER" not in result.out, result
    here = run(["-x", "MY_VAR=x y,MY_KEY=secret-1,tail=secret-3", "--dry_run", "/bin/true"])
    assert "\nexported  MY_VAR='x y'\n          MY_KEY=(hidden)\n          tail=(hidden)\n" in here.out, here
    both = run([*words, "--include=a:0", "-x", "CUDA_VISIBLE_DEVICES=1", "/bin/true"])
    assert both.code == 2 and both.err.startswith("dtrun: --hostfile: -x: CUDA_VISIBLE_DEVICES: each host has its own"), both


def held(pid):
    """What a process can write to: data, heap, stacks, and its files without a name."""
    found = []
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            span, mode = line.split()[:2]
            begin, end = (int(x, 16) for x in span.split("-"))
            if mode.startswith("rw"):
                with contextlib.suppress(OSError, OverflowError):
                    memory.seek(begin)
                    found.append(memory.read(end - begin))
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if "memfd:dtrun-key" in os.readlink(f"/proc/{pid}/fd/{name}"):
                    found.append(read(f"/proc/{pid}/fd/{name}"))
    return found


@pytest.mark.skipif(bool(os.environ.get("SAN")), reason="sanitizers keep freed memory")
def test_no_copy_of_the_key_stays_behind(reach, tmp_path):
    """The starter forgets the user's key and what it made of it once the agents have it; of these each holds what it proves to the others, once."""
    key = b"never-in-memory-" + os.urandom(20).hex().encode()
    (tmp_path / "key").write_bytes(key + b"\n")
    os.chmod(tmp_path / "key", 0o600)
    made = hashlib.blake2b(key, digest_size=32).digest()
    of_agents = hashlib.blake2b(made.hex().encode(), digest_size=32).digest()
    up, go = tmp_path / "up", tmp_path / "go"
    with start(reach, "sh", "-c", STAY, "x", up, go, options=[f"--key_file={tmp_path}/key"], env={"LARGE": "x" * 3000}) as job:
        wait_lines(up, 4)
        starter, inside = [job.pid, *support.children(job.pid)], reach.inside()
        counts = {pid: [sum(part.count(x) for part in held(pid)) for x in (key, made, made.hex().encode(), of_agents)] for pid in [*starter, *inside]}
        names = {pid: read(f"/proc/{pid}/cmdline").split(b"\0")[:2] for pid in counts}
        agents = [pid for pid in inside if b"--leash" in names[pid] and read(f"/proc/{pid}/comm") == b"dtrun-agent\n"]
        assert len(agents) == 2, names
        wrong = {pid: (names[pid], c) for pid, c in counts.items() if c != [0, 0, 0, 1 if pid in agents else 0]}
        assert not wrong, wrong
        go.touch()
        assert job.finish().code == 0
    reach.wait_gone()


def test_interrupted_once_all_save_and_twice_all_end(place, tmp_path):
    job_file = training.make_job(tmp_path, steps=1000000)
    with start(place, "train", job_file, "--output_dir", tmp_path / "out", options=["--nproc_per_node=1"]) as job:
        wait_until(lambda: os.path.exists(tmp_path / "out" / "checkpoints" / "latest"), "a checkpoint")
        job.signal(signal.SIGINT)
        result = job.finish()
    assert result.code == 75 and "state saved" in result.err, result
    place.wait_gone()
    up = tmp_path / "up"
    with start(place, "sh", "-c", "trap '' INT TERM; " + STAY, "x", up, tmp_path / "never") as job:
        wait_lines(up, 4)

        def insist():
            job.signal(signal.SIGINT)
            return job.process.poll() is not None

        wait_until(insist, "the end after INT and INT", step_s=0.5)
        result = job.finish()
    assert result.code == 130, result
    place.wait_gone()


@pytest.mark.parametrize("name", ["ALRM", "HUP"])
def test_any_signal_can_be_one_to_handle(reach, tmp_path, name):
    text = f'trap "echo >> {tmp_path}/got; exit 0" {name}; echo >> {tmp_path}/ready; while :; do sleep 0.05; done'
    number = getattr(signal, "SIG" + name)
    with start(reach, "sh", "-c", text, options=[f"--signals_to_handle=SIGTERM,SIG{name}"]) as job:
        wait_lines(tmp_path / "ready", 4)
        job.signal(number)
        result = job.finish()
    assert result.code == 128 + number and len(lines_of(tmp_path / "got")) == 4, result
    reach.wait_gone()


def test_signals_that_were_ignored_at_the_start_stay_ignored(reach, tmp_path):
    words = reach.args("sh", "-c", STAY, "x", tmp_path / "up", tmp_path / "go")
    with Job(["-c", 'trap "" INT QUIT HUP USR1 TERM; exec "$0" "$@"', DTRUN, *words], executable="/bin/sh") as job:
        wait_lines(tmp_path / "up", 4)
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1):
            job.signal(number)
        (tmp_path / "go").touch()
        result = job.finish()
    assert result.code == 0, result
    reach.wait_gone()


def test_nothing_is_left_when_the_launcher_is_killed(place, tmp_path):
    up = tmp_path / "up"
    with start(place, "sh", "-c", "trap '' INT TERM HUP; " + STAY, "x", up, tmp_path / "never") as job:
        wait_lines(up, 4)
        launcher = next(pid for pid in [job.pid, *support.children(job.pid)] if os.readlink(f"/proc/{pid}/exe") == DTRUN)
        os.kill(launcher, signal.SIGKILL)
        job.process.wait(60)
    place.wait_gone()


def reachers(job):
    """The ssh processes of a job."""
    return wait_until(lambda: len(support.children(job.pid)) == 2 and support.children(job.pid), "two reachers")


def test_a_dead_ssh_is_a_lost_host(place, tmp_path):
    up = tmp_path / "fixed"
    with start(place, "sh", "-c", STAY, "x", up, tmp_path / "never") as job:
        wait_lines(up, 4)
        os.kill(reachers(job)[1], signal.SIGKILL)
        result = job.finish()
    assert result.code == 111 and "host b: ssh failed" in result.err and "too few hosts are left" in result.err, result
    place.wait_gone()
    up = tmp_path / "elastic"
    with start(place, "sh", "-c", STAY, "x", up, tmp_path / "go", options=["--nnodes=1:2", "--last_call=1", "--max_restarts=3"]) as job:
        wait_lines(up, 4)
        os.kill(reachers(job)[1], signal.SIGKILL)
        wait_until(lambda: [line for line in lines_of(up) if line.endswith(" 2")], "a round of one host")
        (tmp_path / "go").touch()
        result = job.finish()
    assert result.code == 0 and "going on with 1 of 2 hosts (minimum 1)" in result.err, result
    place.wait_gone()


def test_a_console_that_nobody_reads_costs_no_host(reach, tmp_path):
    """What the launching host says itself must not keep it from saying to the others that it is there."""
    up = tmp_path / "up"
    with start(reach, "sh", "-c", STAY, "x", up, tmp_path / "go",
               options=["--nnodes=1:2", "--last_call=1", "--max_restarts=3", "--dead_after=3"]) as job:
        wait_lines(up, 4)
        support.fill_stderr(job.pid)
        os.kill(reachers(job)[1], signal.SIGKILL)
        wait_until(lambda: [line for line in lines_of(up) if line.endswith(" 2")], "a round of one host")
        time.sleep(7)
        (tmp_path / "go").touch()
        result = job.finish()
    assert result.code == 0 and "going on with 1 of 2 hosts (minimum 1)" in result.err, result
    assert "a: dtrun: host a: the launching host is gone" not in result.err, result
    reach.wait_gone()


def test_hosts_that_cannot_be_reached(reach, tmp_path):
    (tmp_path / "hosts").write_text("a\nz\n")
    result = run([f"--hostfile={tmp_path}/hosts", f"--ssh={reach.ssh}", "sleep", "600"])
    assert result.code == 111 and "z: reach: z: unknown host\n" in result.err and "host z: ssh failed" in result.err, result
    reach.wait_gone()


def test_a_connection_that_ssh_keeps_in_the_background_holds_nobody_up(reach, tmp_path):
    """As ControlPersist does: it holds the pipes longer than the job lasts."""
    keeper = script(tmp_path, "keeper", f'(sleep 300 & echo $! >>{tmp_path}/pids)\nexec {reach.ssh} "$@"\n')
    (tmp_path / "hosts").write_text("a\nb\n")
    with Job([f"--hostfile={tmp_path}/hosts", f"--ssh={keeper}", "sh", "-c", "echo $RANK"]) as job:
        assert job.process.wait(support.DEADLINE_S) == 0
        os.kill(int(lines_of(tmp_path / "pids")[0]), signal.SIGKILL)
        os.kill(int(lines_of(tmp_path / "pids")[1]), signal.SIGKILL)
        result = job.finish()
    assert sorted(result.out.splitlines()) == ["a: 0", "b: 1"], result


@pytest.mark.parametrize("name", ["localhost", socket.gethostname(), "127.0.0.1", "::1"])
def test_this_host_alone_needs_no_ssh(tmp_path, name):
    (tmp_path / "hosts").write_text(f"{name} slots=2\n")
    script(tmp_path, "ssh", f'echo "$@" >>{tmp_path}/called; exit 255')
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OWN_WORD": "kept"}
    words = ("sh", "-c", 'echo "$RANK/$WORLD_SIZE $OWN_WORD"')
    with Job([f"--hostfile={tmp_path}/hosts", *words], env=env) as job:
        result = job.finish()
        job.wait_gone()
    assert result.code == 0 and sorted(result.out.splitlines()) == [f"{name}: 0/2 kept", f"{name}: 1/2 kept"], result
    failed = run([f"--hostfile={tmp_path}/hosts", "--exit_code=worker", "sh", "-c", "exit 7"], env=env)
    assert failed.code == 7, failed
    assert not os.path.exists(tmp_path / "called")
    shown = run([f"--hostfile={tmp_path}/hosts", "--dry_run", *words], env=env)
    assert f"host 0    {name}, 2 workers (its slots), ranks 0 to 1: /bin/sh -c 'cd " in shown.out, shown
    run([f"--hostfile={tmp_path}/hosts", f"--ssh={tmp_path}/ssh -v", *words], env=env)
    assert lines_of(tmp_path / "called")[0].startswith(f"-v {name} cd "), lines_of(tmp_path / "called")


@pytest.mark.parametrize("text, options, words", [
    ("", [], "the list of hosts is empty"),
    ("a slots=2\na slots=2\n", [], "line 2: "),
    ("a slots=two\n", [], "line 1: "),
    ("a slots=2\n", ["--nproc_per_node=3"], "--nproc_per_node: 3: host a has 2 slots"),
    ("a\nb\n", ["--nnodes=3"], "--nnodes: 3 hosts: "),
    ("a\nb\n", ["--node_rank=1"], "--node_rank: is for one host, --hostfile for several"),
    ("a\n", ["--ssh= "], "--ssh: (empty)"),
    ("a\n", ["--ssh=/no/ssh"], "--ssh: /no/ssh: "),
])
def test_what_cannot_be_is_refused_before_anything_starts(tmp_path, text, options, words):
    (tmp_path / "hosts").write_text(text)
    result = run([f"--hostfile={tmp_path}/hosts", *options, "/bin/true"])
    assert result.code == 2 and words in result.err and result.out == "", result
    result = run(["--hostfile=/no/file", "/bin/true"])
    assert result.code == 2 and "--hostfile: " in result.err and "/no/file" in result.err, result


def test_a_host_without_dtrun_is_named_and_ends_the_job_soon(tmp_path):
    (tmp_path / "hosts").write_text("localhost\ntwo\n")
    ssh = script(tmp_path, "reach", '[ "$1" = two ] && exec sh -c "exec /no/such/dtrun"\nexec sh -c "$2"\n')
    result = run([f"--hostfile={tmp_path}/hosts", f"--ssh={ssh}", "/bin/true"], timeout_s=20)
    assert result.code == 111 and result.err.count("has not ended") == 0, result
    assert "host two: ended with 127: is dtrun at the same path there?; too few hosts are left (minimum 2): stopping" in result.err, result


def test_an_agent_that_never_joined_did_not_leave(tmp_path):
    """The launching host cannot tell it from one that lost the job later, and says both."""
    (tmp_path / "hosts").write_text("localhost\ntwo\n")
    ssh = script(tmp_path, "reach", '[ "$1" = two ] && exec sh -c "exit 111"\nexec sh -c "$2"\n')
    result = run([f"--hostfile={tmp_path}/hosts", f"--ssh={ssh}", "/bin/true"], timeout_s=20)
    assert result.code == 111 and "left the job" not in result.err, result
    assert "dtrun: host two: ended with 111: did not join the job, or could not stay in it; too few hosts are left (minimum 2): stopping" in result.err, result


def test_an_ssh_that_does_nothing_is_said(tmp_path):
    (tmp_path / "hosts").write_text("one\n")
    result = run([f"--hostfile={tmp_path}/hosts", f"--ssh={script(tmp_path, 'no', 'exit 1')}", "/bin/true"])
    assert result.code == 1 and result.err == "dtrun: host one: ended with 1 without a word: does --ssh run what it is given?\n", result


def test_dry_run_shows_every_line(tmp_path):
    (tmp_path / "hosts").write_text("a slots=4\nb slots=2\nc\n")
    result = run([f"--hostfile={tmp_path}/hosts", "--nnodes=2:3", "--max_restarts=2", "--dry_run", "--master_port=29500", "train", "my job.json"], cwd=tmp_path)
    lines = [line for line in result.out.splitlines() if line.startswith("host ")]
    assert result.code == 0 and len(lines) == 3 and "hosts (--hostfile, --nnodes), goes on with 2\n" in result.out, result
    placed = (("a", "4 workers (its slots), ranks 0 to 3"), ("b", "2 workers (its slots), ranks 4 to 5"), ("c", "1 worker (default), rank 6"))
    for i, (name, ranks) in enumerate(placed):
        assert f"host {i}    {name}, {ranks}: ssh " in lines[i] and f"--node_rank={i} --rdzv_endpoint=a:29500" in lines[i], result
        assert f"cd {tmp_path} && exec {DTRUN} --leash " in lines[i] and "--max_restarts=2" in lines[i] and "my job.json" in lines[i], result


@pytest.mark.parametrize("words, variables, said", [
    (["--stdin=all"], {}, "--stdin: all"),
    (["--stdin=0"], {}, "--stdin: 0"),
    ([], {"DTRUN_STDIN": "3"}, "DTRUN_STDIN: 3"),
    (["--stdin=none"], {}, None),
])
def test_standard_input_is_refused_aloud(tmp_path, words, variables, said):
    (tmp_path / "hosts").write_text("a\nb\n")
    result = run([f"--hostfile={tmp_path}/hosts", *words, "--dry_run", "/bin/cat"], env=variables)
    if said is None:
        assert result.code == 0, result
    else:
        assert result.code == 2, result
        assert result.err == f"dtrun: {said}: with --hostfile workers have no standard input; leave it out, or say none\n", result


def test_dry_run_shows_variables_and_where_values_came_from(tmp_path):
    (tmp_path / "hosts").write_text("a slots=4\nb slots=2\nc\n")
    show = [f"--hostfile={tmp_path}/hosts", "--dry_run"]
    result = run([*show, "--include=a:0,3@b", "/bin/true"], env={"PET_RDZV_ID": "run-7", "PET_MASTER_PORT": "29500", "OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO"})
    assert result.code == 0, result
    for line in ("hosts     2 of {}/hosts (--hostfile, --include)", "endpoint  a:29500: host (the first one), port (PET_MASTER_PORT)",
                 "run id    run-7 (PET_RDZV_ID)", "key       a new one"):
        assert line.format(tmp_path) + "\n" in result.out, (line, result)
    for i, block in enumerate(result.out.split("\nhost ")[1:]):
        variables = dict(line.strip().split("=", 1) for line in block.splitlines()[1:])
        wanted = {"RANK": 2 * i, "WORLD_SIZE": 4, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": i, "GROUP_WORLD_SIZE": 2, "MASTER_ADDR": "a",
                  "MASTER_PORT": 29500, "TORCHELASTIC_RUN_ID": "run-7", "DTRUN_HOST_OF_RANK": "0(x2),1(x2)"}
        assert {k: variables.get(k) for k in wanted} == {k: str(v) for k, v in wanted.items()}, (i, result)
        assert variables.get("CUDA_VISIBLE_DEVICES") == ("0,3" if i == 0 else None), (i, result)
    made_up = run([*show, "--port_range=20000-20001", "/bin/true"])
    assert re.search(r"endpoint  a:2000[01]: host \(the first one\), port \(--port_range\)\n", made_up.out) and " (made up)\nkey" in made_up.out, made_up
    there = run([*show, "--nproc_per_node=gpu", "/bin/true"], env={"CUDA_VISIBLE_DEVICES": "0"})
    assert "a, gpu workers (--nproc_per_node): ssh" in there.out and "when each host has counted" in there.out and " RANK=" not in there.out, there


def test_a_leash_is_nothing_to_type():
    result = run(["--leash", "/bin/true"])
    assert result.code == 2 and "is for agents that --hostfile starts" in result.err, result


@pytest.mark.parametrize("two", ["exit 0", 'echo "$2"', 'sh -c "$2" < /dev/null > /dev/null 2>&1 & exit 0'])
def test_an_ssh_that_ends_with_0_in_an_agents_place_is_a_lost_host(tmp_path, two):
    """As a login file with `exit 0`, a forced command, or one that goes to the background: nothing has run there."""
    (tmp_path / "hosts").write_text("localhost\ntwo\n")
    ssh = script(tmp_path, "reach", f'[ "$1" != two ] && exec sh -c "$2"\n{two}\n')
    result = run([f"--hostfile={tmp_path}/hosts", f"--ssh={ssh}", "/bin/true"], timeout_s=20)
    assert result.code == 111 and "dtrun: host two: ended with 0, and no agent of dtrun said so: does --ssh run what it is given, and wait for it?; " \
        "too few hosts are left (minimum 2): stopping\n" in result.err, result


def test_what_an_agent_signs_its_end_with_is_not_shown(tmp_path):
    """Also behind an unfinished line of a worker, and with one of its outputs thrown away."""
    (tmp_path / "hosts").write_text("localhost\ntwo\n")
    for closed in ("", "> /dev/null", "2> /dev/null"):
        ssh = script(tmp_path, "reach", f'exec sh -c "$2" {closed}\n')
        result = run([f"--hostfile={tmp_path}/hosts", f"--ssh={ssh}", "sh", "-c", "printf unfinished; printf unfinished >&2"], timeout_s=20)
        assert result.code == 0 and "dtrun-ended" not in result.out + result.err, (closed, result)
        assert [text.count("unfinished") for text in (result.out, result.err)] == [2 * (closed != "> /dev/null"), 2 * (closed != "2> /dev/null")], (closed, result)


def test_a_failure_that_ssh_does_not_pass_on_is_one(tmp_path):
    """As of a pipeline in a wrapper, which ends with the code of its last part."""
    (tmp_path / "hosts").write_text("localhost\ntwo\n")
    ssh = script(tmp_path, "reach", 'sh -c "$2"\nexit 0\n')
    result = run([f"--hostfile={tmp_path}/hosts", f"--ssh={ssh}", "sh", "-c", "exit 3"], timeout_s=20)
    assert result.code == 1 and "exit code 3" in result.err and "no agent of dtrun" not in result.err, result


def test_control_codes_of_a_worker_do_not_reach_a_terminal(tmp_path):
    """They could take the host's name off a line, and put another one there. Colours may pass; a file gets what was written."""
    (tmp_path / "hosts").write_text("localhost\ntwo\n")
    ssh = script(tmp_path, "reach", 'exec sh -c "$2"\n')
    text = r"printf 'one\n\033[1A\033[2K\033[31mred\033]0;title\007\302\2332J\342\200\256x\n'"
    args = [f"--hostfile={tmp_path}/hosts", f"--ssh={ssh}", "bash", "-c", text]
    master, slave = pty.openpty()
    with subprocess.Popen([DTRUN, *args], env=support.clean_env({"TERM": "xterm", "NO_COLOR": None}), stdin=subprocess.DEVNULL, stdout=slave, stderr=slave) as p:
        os.close(slave)
        out = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while piece := os.read(master, 65536):
                out += piece
        os.close(master)
        assert p.wait(support.DEADLINE_S) == 0
    line = "^[[1A^[[2K\x1b[31mred^[]0;title^G<c2><9b>2J<e2><80><ae>x\x1b[0m"
    assert sorted(x for x in out.decode().split("\r\n") if x.endswith((line, ": one"))) == sorted(f"{h}: {t}" for h in ("localhost", "two") for t in (line, "one")), out
    result = subprocess.run([DTRUN, *args], env=support.clean_env({}), stdin=subprocess.DEVNULL, capture_output=True, timeout=support.DEADLINE_S)
    assert result.stdout.count(b"\033[1A\033[2K\033[31mred\033]0;title\007\302\2332J\342\200\256x\n") == 2, result


def test_output_may_come_after_the_end_of_ssh(tmp_path):
    (tmp_path / "hosts").write_text("localhost\ntwo\n")
    ssh = script(tmp_path, "reach", 'exec bash -c \'exec > >(sleep 0.3; cat) 2> >(sleep 0.3; cat >&2); sh -c "$0"\' "$2"\n')
    result = run([f"--hostfile={tmp_path}/hosts", f"--ssh={ssh}", "echo", "here"], timeout_s=20)
    assert result.code == 0 and result.out.count("here") == 2, result
