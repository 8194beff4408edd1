# covers: launcher/query
"""--metrics_endpoint: what Prometheus reads from a running job, and that readers of any kind cost the job nothing."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request

import pytest
import training
from nodes import free_port
from support import DEADLINE_S, DTRUN, PYTHON, Job, clean_env, run, script, wait_lines, wait_until

pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")
URL = re.compile(r"dtrun: metrics of host \S+ at (http://127\.0\.0\.1:\d+/metrics)\n")


def wait_script(folder):
    """Workers that wait for the file `go`; rank 1 of the first round fails when `fail` is there."""
    return script(folder, "wait.py", f"""
import os, time
print("here", flush=True)
with open({str(folder / "here")!r}, "a") as f:
    f.write(os.environ["RANK"] + "\\n")
while not os.path.exists({str(folder / "go")!r}):
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.path.exists({str(folder / "fail")!r}):
        raise SystemExit(3)
    time.sleep(0.02)
""")


def url_of(job, line=URL):
    """From the job's standard error, of which finish() returns the rest."""
    return next(found for text in job.process.stderr if (found := line.fullmatch(text))).group(1)


def read(url):
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return parse(answer.read().decode())


def parse(text):
    """{(name, labels): value}; checks what the exposition format asks: help and type before a metric's values, which stand together, each once."""
    values, types, seen = {}, {}, []
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            assert line.split(" ", 3)[3]
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types and kind in ("gauge", "counter") and (kind == "counter") == name.endswith("_total")
            types[name] = kind
            seen.append(name)
            continue
        name, labels, value = re.fullmatch(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)', line).groups()
        assert seen[-1] == name and (name, labels or "") not in values
        values[name, labels or ""] = float(value)
    return values


def of_rank(values, name, rank):
    return next((v for (n, labels), v in values.items() if n == name and f'rank="{rank}",' in labels), None)


def test_a_job_is_measured(tmp_path):
    options = ["--nproc_per_node=2", "--metrics_endpoint=0", "--max_restarts=1", "--tee=3", "--role=trainer", f"--log_dir={tmp_path / 'log'}"]
    with Job([*options, wait_script(tmp_path)], env={"PYTHON_EXEC": PYTHON}) as job:
        url = url_of(job)
        wait_lines(tmp_path / "here", 2)
        m = read(url)
        (info,) = [labels for name, labels in m if name == "dtrun_info"]
        assert 'role="trainer"' in info and 'program="' in info and f'host="{socket.gethostname()}"' in info
        assert m["dtrun_state", 'state="running"'] == 1 and sum(v for (n, _), v in m.items() if n == "dtrun_state") == 1
        assert [m[f"dtrun_{n}", ""] for n in ("round", "restarts", "max_restarts", "hosts", "world_size", "local_world_size")] == [1, 0, 1, 1, 2, 2]
        assert m["process_resident_memory_bytes", ""] > 1e6 and m["dtrun_up_seconds", ""] > 0
        for rank in 0, 1:
            assert of_rank(m, "dtrun_worker_running", rank) == 1 and of_rank(m, "dtrun_worker_exit_code", rank) is None
            assert of_rank(m, "dtrun_worker_resident_memory_bytes", rank) > 1e6 and of_rank(m, "dtrun_worker_threads", rank) >= 1
            assert of_rank(m, "dtrun_worker_step", rank) is None  # a program without a page
        wait_until(lambda: of_rank(read(url), "dtrun_worker_output_age_seconds", 1) is not None, "the age of the output")
        (tmp_path / "fail").touch()
        wait_lines(tmp_path / "here", 4)
        m = wait_until(lambda: (m := read(url))["dtrun_round", ""] == 2 and m, "the second round")
        assert m["dtrun_restarts", ""] == 1
        (tmp_path / "go").touch()
        assert job.finish().code == 0


def test_training_is_measured_and_not_disturbed(tmp_path):
    job_file = training.make_job(tmp_path, steps=100, training={"threads": 1})
    assert training.train(job_file, tmp_path / "alone", ranks=2).code == 0
    with Job(["--nproc_per_node=2", "--metrics_endpoint=0", "train", job_file, "--output_dir", tmp_path / "read"]) as job:
        url = url_of(job)
        held = training.worker_at([job], 3).pid  # the job waits for it until all has been read
        os.kill(held, signal.SIGSTOP)
        port = int(url.split(":")[2].split("/")[0])
        m = wait_until(lambda: of_rank(m := read(url), "dtrun_worker_loss", 0) is not None and m, "a loss")
        for rank in 0, 1:
            assert of_rank(m, "dtrun_worker_step", rank) >= 1 and 0 < of_rank(m, "dtrun_worker_loss", rank) < 10
            assert of_rank(m, "dtrun_worker_tokens_per_second", rank) > 0 and of_rank(m, "dtrun_worker_learning_rate", rank) >= 0
        assert of_rank(m, "dtrun_worker_gpu_memory_bytes", 0) is None
        with contextlib.ExitStack() as stack:
            for i in range(300):  # some say nothing, some ask and do not read
                c = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S))
                if i % 2 == 0:
                    c.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert ("dtrun_round", "") in read(url)  # and one that does is served
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(url[: -len("metrics")], timeout=DEADLINE_S)
            os.kill(held, signal.SIGCONT)
            result = job.finish()
    assert result.code == 0, result
    assert training.hash_of(tmp_path / "read") == training.hash_of(tmp_path / "alone")


def test_a_port_that_is_taken_costs_nothing_but_a_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run([f"--metrics_endpoint={port}", "/bin/true"])
    assert result.code == 0
    assert re.fullmatch(rf"dtrun: warning: --metrics_endpoint: port {port}: already in use by pid {os.getpid()} \(\S+\); the job goes on without it\n",
                        result.err), result


def test_two_agents_of_a_machine(tmp_path):
    endpoint = free_port()
    options = ["--nnodes=2", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{endpoint}", "--metrics_endpoint=0", wait_script(tmp_path)]
    with Job(options, env={"PYTHON_EXEC": PYTHON}) as one:
        url = url_of(one)
        m = read(url)  # while it waits for the other one
        assert m["dtrun_state", 'state="joining"'] == 1 and m["dtrun_min_hosts", ""] == 2 and m["dtrun_round", ""] == m["dtrun_hosts", ""] == 0
        with Job(options, env={"PYTHON_EXEC": PYTHON}) as other:
            wait_lines(tmp_path / "here", 2)
            urls = [url, url_of(other)]
            wait_until(lambda: all(read(u)["dtrun_round", ""] == 1 for u in urls), "the round")  # a text may be 0.25 s old
            both = [read(u) for u in urls]
            assert sorted(m["dtrun_group_rank", ""] for m in both) == [0, 1] and all(m["dtrun_hosts", ""] == 2 for m in both)
            assert sorted(rank for rank in (0, 1) for m in both if of_rank(m, "dtrun_worker_running", rank)) == [0, 1]  # each its own
            (tmp_path / "go").touch()
            assert one.finish().code == 0 and other.finish().code == 0


@pytest.mark.parametrize("value, why", [
    ("x", "x: must be PORT or HOST:PORT; example: --metrics_endpoint=9400"),
    (":9400", ":9400: must be PORT, for this host alone, or HOST:PORT; example: --metrics_endpoint=0.0.0.0:9400 for everybody"),
    ("70000", "70000: must be a port from 0 to 65535; example: --metrics_endpoint=9400"),
    ("127.0.0.1:70000", "127.0.0.1:70000: the port must be a number from 0 to 65535; example: localhost:29500"),
    ("fd00::1:9400", "fd00::1:9400: an IPv6 address needs brackets; example: [::1]:29500"),
])
def test_wrong_values(value, why):
    result = run([f"--metrics_endpoint={value}", "/bin/true"])
    assert (result.code, result.err) == (2, f"dtrun: --metrics_endpoint: {why}\n")


def test_a_name_of_the_host(tmp_path):
    with Job(["--metrics_endpoint=localhost:0", wait_script(tmp_path)], env={"PYTHON_EXEC": PYTHON}) as job:
        assert ("dtrun_round", "") in read(url_of(job, re.compile(r".* at (http://localhost:\d+/metrics)\n")))
        (tmp_path / "go").touch()
        assert job.finish().code == 0
    result = run(["--metrics_endpoint=no-such-host.invalid:0", "/bin/true"])
    assert result.code == 0 and re.fullmatch(r"dtrun: warning: --metrics_endpoint: no-such-host\.invalid: .*; the job goes on without it\n", result.err), result
    result = run(["--metrics_endpoint=192.0.2.1:9400", "/bin/true"])
    assert result.code == 0 and "the job goes on without it\n" in result.err, result


def test_workers_do_not_inherit_it():
    result = run(["sh", "-c", 'echo "[$DTRUN_METRICS_ENDPOINT]"'], env={"DTRUN_METRICS_ENDPOINT": str(free_port())})
    assert (result.code, result.out, result.err) == (0, "[]\n", "")


def test_the_range_of_ports():
    result = run(["--port_range=20000-20100", "--metrics_endpoint=9400", "/bin/true"])
    assert result.code == 2
    assert "--metrics_endpoint: port 9400 is not in --port_range=20000-20100; give a port of that range, or 0 for any free one in it" in result.err


def test_localhost_is_ipv4(tmp_path):
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("no private mounts here (unshare -m needs root)")
    (tmp_path / "hosts").write_text("::1 localhost\n127.0.0.1 localhost\n")
    port = free_port()
    read_it = f"import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:{port}/metrics').status)"
    line = f'mount --bind "$0/hosts" /etc/hosts && exec {DTRUN} --metrics_endpoint=localhost:{port} {PYTHON} -c "$1"'
    p = subprocess.run(["unshare", "-m", "sh", "-c", line, tmp_path, read_it], env=clean_env(), capture_output=True, text=True, timeout=DEADLINE_S)
    assert p.returncode == 0 and p.stdout == "200\n", p


def test_it_is_reached_by_the_given_address_alone(tmp_path):
    with Job(["--metrics_endpoint=[::1]:0", wait_script(tmp_path)], env={"PYTHON_EXEC": PYTHON}) as job:
        port = int(url_of(job, re.compile(r".* at http://\[::1\]:(\d+)/metrics\n")))
        assert ("dtrun_round", "") in read(f"http://[::1]:{port}/metrics")
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        (tmp_path / "go").touch()
        assert job.finish().code == 0
