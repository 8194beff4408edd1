"""The same small workers under torchrun (from PyPI) and under dtrun, and what must be equal afterwards. The cases are data; story_dropin.py runs
those of the commit tier, story_dropin_full.py all."""

import json
import os
import re
import socket
import subprocess
import sys

import support

PEERS = os.environ.get("DTRUN_PEERS") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dtrun", "peers")
PEER_PYTHON = os.path.join(PEERS, "bin", "python")
DRIVER = os.path.join(support.ROOT, "tests", "peers", "torchruns.py")

# Writes what it was given to $DEST/RANK.RESTART, one line to each stream, and ends as $MODE says.
WORKER = r'''
import json, os, signal, sys, time
rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with open(os.path.join(os.environ["DEST"], f"{rank}.{restart}"), "w") as f:
    json.dump({"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(), "leader": os.getsid(0) == os.getpid(), "pgid": os.getpgid(0) == os.getpid()}, f)
while rank == 1 and not os.path.exists(os.path.join(os.environ["DEST"], f"0.{restart}.said")):
    time.sleep(0.01)
sys.stdout.write(f"out {rank} {restart}\n")  # one write: ranks share the pipe
sys.stderr.write(f"err {rank} {restart}\n")
sys.stdout.flush()
sys.stderr.flush()
with open(os.path.join(os.environ["DEST"], f"{rank}.{restart}.said"), "w"):
    mode = os.environ.get("MODE", "")
if mode == "once" and restart == 0 and rank == 1:
    sys.exit(3)
if mode == "fail" and rank == 1:
    sys.exit(17)
if mode == "error_file" and rank == 1:
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as f:
        json.dump({"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback:\n  here\nValueError: boom", "timestamp": str(int(time.time()))}}}, f)
    sys.exit(1)
if mode == "killed" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if mode in ("fail", "error_file", "killed"):
    time.sleep(600)
'''
SHELL = '#!/bin/sh\nexec "$PYTHON_EXEC" worker.py "$@"\n'

# name: (in the commit tier, arguments, variables). {port}: a free one; {dir}: the case's folder.
CASES = {
    "plain": (True, ["--nproc-per-node=2", "worker.py", "a b", "--nproc-per-node", "7", "--", "-x", "$local_rank", "${local_rank}/x", "$$", "$other"], {}),
    "restart": (True, ["--nproc_per_node", "2", "--rdzv_backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv_id=my-run", "--role=trainer", "--max-restarts=1",
                       "-r", "0:1,1:3", "--log-dir={dir}/logs", "worker.py"], {"MODE": "once"}),
    "tee": (True, ["--nproc-per-node=2", "-t3", "-r", "0:1", "--log_dir={dir}/logs", "--local-ranks-filter=1", "worker.py"], {}),
    "error_file": (True, ["--nproc-per-node=2", "--log-dir={dir}/logs", "worker.py"], {"MODE": "error_file", "TORCHELASTIC_ERROR_FILE": "{dir}/above.json"}),
    "variables": (True, ["worker.py"], {"PET_NPROC_PER_NODE": "2", "PET_ROLE": "r", "PET_MAX_RESTARTS": "2", "PET_REDIRECTS": "1", "PET_TEE": "0:2",
                                        "PET_LOG_DIR": "{dir}/logs", "PET_STANDALONE": "1", "PET_RDZV_ID": "unused", "OMP_NUM_THREADS": "5"}),
    "module": (True, ["--nproc-per-node=1", "-m", "package.module", "-m", "x"], {}),
    "run_path": (False, ["--nproc-per-node=2", "--run-path", "worker.py", "a b", "-m", "--", "${local_rank}"], {}),
    "run_path_wins": (False, ["--run_path", "-m", "--no-python", "./worker.py"], {}),
    "run_path_variable": (False, ["worker.py", "x"], {"PET_RUN_PATH": "1"}),
    "static": (False, ["--nnodes=1", "--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port={port}", "--node-rank=0", "--rdzv-id=seven", "worker.py"], {}),
    "endpoint": (False, ["--rdzv-endpoint=127.0.0.1:{port}", "--nnodes=1:1", "worker.py"], {}),
    "standalone": (False, ["--standalone", "--nproc-per-node=2", "--rdzv-id=unused", "--rdzv-backend=static", "--rdzv-endpoint=nowhere:1", "worker.py"], {}),
    "no_python": (False, ["--nproc-per-node=2", "--no-python", "./worker.sh", "--flag", "${local_rank}"], {}),
    "no_python_path": (False, ["--no_python", "env", "python3", "worker.py", "-m"], {}),
    "dashes": (False, ["--nproc-per-node", "1", "--", "worker.py", "--", "x"], {}),
    "dashes_behind": (False, ["worker.py", "--", "--x", "--"], {}),
    "dashes_behind_alone": (False, ["-m", "package.module", "--"], {}),
    "dashes_later": (False, ["worker.py", "-", "--", "x"], {}),
    "prefixes_of_names": (False, ["--stand", "--redirect=3", "--log-dir={dir}/logs", "--rol", "x", "worker.py"], {}),
    "last_wins": (False, ["--nproc-per-node=3", "--role=a", "--nproc_per_node=1", "--role=b", "worker.py"], {}),
    "command_line_wins": (False, ["--nproc-per-node=1", "--role=b", "worker.py"], {"PET_NPROC_PER_NODE": "3", "PET_ROLE": "a", "PET_STANDALONE": "0"}),
    "fail": (False, ["--nproc-per-node=2", "--log-dir={dir}/logs", "worker.py"], {"MODE": "fail", "TORCHELASTIC_ERROR_FILE": "{dir}/above.json"}),
    "budget": (False, ["--nproc-per-node=2", "--max-restarts=2", "-t3", "--log-dir={dir}/logs", "worker.py"], {"MODE": "fail"}),
    "killed": (False, ["--nproc-per-node=2", "--log-dir={dir}/logs", "worker.py"], {"MODE": "killed"}),
    "dev_null": (False, ["--nproc-per-node=2", "--log-dir=/dev/null", "worker.py"], {}),
    "dev_null_redirects": (False, ["--nproc-per-node=2", "-r3", "--log-dir=/dev/null", "worker.py"], {}),
    "redirect_all": (False, ["--nproc-per-node=3", "-r", "3", "--log-dir={dir}/logs", "worker.py"], {}),
    "redirect_stdout": (False, ["--nproc-per-node=2", "-r", "1", "--log-dir={dir}/logs", "worker.py"], {}),
    "redirect_stderr": (False, ["--nproc-per-node=2", "--redirects=2", "--log-dir={dir}/logs", "worker.py"], {}),
    "tee_map": (False, ["--nproc-per-node=3", "--tee", "0:3,2:2", "--log-dir={dir}/logs", "worker.py"], {}),
    "tee_over_redirect": (False, ["--nproc-per-node=2", "-r1", "-t2", "--log-dir={dir}/logs", "worker.py"], {}),
    "filter_inherited": (False, ["--nproc-per-node=3", "--local-ranks-filter=0,2", "worker.py"], {}),
    "filter_redirect": (False, ["--nproc-per-node=2", "-r3", "--local_ranks_filter", "0", "--log-dir={dir}/logs", "worker.py"], {}),
    "template": (False, ["--nproc-per-node=2", "-t3", "--log-dir={dir}/logs", "--log-line-prefix-template=<${role_name}|${local_rank}|${rank}|${hostname}> ",
                         "worker.py"], {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "loses"}),
    "template_variable": (False, ["-t3", "--log-dir={dir}/logs", "worker.py"], {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${rank}: "}),
    "duplicates": (False, ["--nproc-per-node=2", "-t3", "--log-dir={dir}/logs", "--duplicate-stdout-filters=out 1,nothing", "--duplicate-stderr-filters=err", "worker.py"], {}),
    "virtual_rank": (False, ["--nproc-per-node=2", "--virtual-local-rank", "worker.py"], {"CUDA_VISIBLE_DEVICES": "5,3"}),
    "virtual_rank_bare": (False, ["--nproc-per-node=2", "--virtual-local-rank", "worker.py"], {}),
    "virtual_rank_few": (False, ["--nproc-per-node=2", "--virtual-local-rank", "worker.py"], {"CUDA_VISIBLE_DEVICES": "5"}),
    "threads_one_worker": (False, ["worker.py"], {}),
    "nccl_variable": (False, ["worker.py"], {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
    "cpu": (False, ["--nproc-per-node=cpu", "worker.py"], {}),
    "auto": (False, ["--nproc-per-node=auto", "worker.py"], {"CUDA_VISIBLE_DEVICES": ""}),
    "signals": (False, ["--signals-to-handle=SIGTERM,SIGUSR1", "worker.py"], {}),
    "without_effect": (False, ["--start-method=fork", "--monitor-interval=0.5", "--event-log-handler=null", "--logs-specs=default", "--shutdown-timeout=5",
                               "--local-addr=127.0.0.1", "worker.py"], {}),
    "conf": (False, ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=a.b", "--rdzv-conf=timeout=x, join_timeout=60 ,last_call_timeout=1,close_timeout=3,"
                     "heartbeat_timeout=3,keep_alive_interval=2,keep_alive_max_attempt=2,read_timeout=30,is_host=true,store_type=tcp,use_libuv=0,foo=bar",
                     "worker.py"], {}),
    "watchdog": (False, ["worker.py"], {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": "{dir}/timer"}),
    "watchdog_random": (False, ["worker.py"], {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}),
    "watchdog_file_only": (False, ["worker.py"], {"TORCHELASTIC_TIMER_FILE": "{dir}/timer"}),
    "events": (False, ["--nproc-per-node=2", "--event-log-handler=console", "--role=q", "worker.py"], {}),
    "events_of_a_failure": (False, ["--nproc-per-node=2", "--event-log-handler=console", "--max-restarts=1", "worker.py"], {"MODE": "error_file"}),
    # refused by both
    "no_script": (True, [], {}),
    "unknown_option": (False, ["--nonsense", "worker.py"], {}),
    "bad_nnodes": (False, ["--nnodes=3:2", "worker.py"], {}),
    "bad_nproc": (False, ["--nproc-per-node=many", "worker.py"], {}),
    "zero_nproc": (False, ["--nproc-per-node=0", "worker.py"], {}),
    "bad_mask": (False, ["-r", "7", "worker.py"], {}),
    "bad_map": (False, ["-t", "0:3,1", "worker.py"], {}),
    "bad_filter": (False, ["--local-ranks-filter=a", "worker.py"], {}),
    "bad_conf": (False, ["--rdzv-conf=a", "worker.py"], {}),
    "bad_method": (False, ["--start-method=thread", "worker.py"], {}),
    "bad_specs": (False, ["--logs-specs=mine", "worker.py"], {}),
    "bad_handler": (False, ["--event-log-handler=mine", "worker.py"], {}),
    "bad_flag": (False, ["worker.py"], {"PET_STANDALONE": "yes"}),
    "bad_restarts": (False, ["--max-restarts=x", "worker.py"], {}),
    "module_without_python": (False, ["-m", "--no-python", "package.module"], {}),
    "missing_script": (False, ["missing.py"], {}),
    "missing_program": (False, ["--no-python", "no-such-program"], {}),
    "no_gpu": (False, ["--nproc-per-node=gpu", "worker.py"], {"CUDA_VISIBLE_DEVICES": ""}),
    "bad_backend": (False, ["--rdzv-backend=nothing", "--rdzv-endpoint=localhost:1", "worker.py"], {}),
}


def has_torch():
    if not os.path.exists(PEER_PYTHON):
        return False
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run([PEER_PYTHON, "-c", look], check=False).returncode == 0


class Outcome:
    """What one launcher made of one case."""

    def __init__(self, folder, code):
        self.folder, self.code = folder, code
        self.out, self.err = ((folder / x).read_text(errors="replace") for x in ("OUT", "ERR"))
        self.workers = {p.name: json.loads(p.read_text()) for p in (folder / "dest").iterdir() if p.suffix != ".said"}
        self.above = json.loads((folder / "above.json").read_text()) if (folder / "above.json").exists() else None

    def plain(self, text):
        """Without what differs from run to run: folders, random names, ports, times."""
        text = text.replace(str(self.folder), "DIR")
        text = re.sub(r"/tmp/torchelastic_\w{8}", "TEMPORARY", text)
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
        return re.sub(r"((?:DIR/logs|TEMPORARY)/[^/\s]+)_[a-z0-9_]{8}(?=/|$)", r"\1_RANDOM", text)

    def tree(self):
        """Files of the log folder and what is in them. error.json has a time."""
        found, logs = {}, self.folder / "logs"
        for path in sorted(logs.rglob("*")) if logs.exists() else []:
            name = self.plain(str(path))
            if path.is_file() and path.name != "events.jsonl":
                found[name] = path.read_text() if path.name != "error.json" else sorted(json.loads(path.read_text())["message"])
                if path.name.startswith("filtered"):  # of all ranks, whose lines come in any order
                    found[name] = sorted(found[name].splitlines())
        return found

    def said(self, stream):
        """Lines of workers on a stream, with prefixes; they come in any order."""
        shown = getattr(self, stream).partition("\nlast lines of rank ")[0]  # a report shows some again
        return sorted(x for x in shown.splitlines() if re.search(r"\b(out|err) \d+ \d+$", x))

    def environment(self, worker):
        kept = {}
        for name, value in self.workers[worker]["env"].items():
            if name.startswith("DTRUN_") or name == "STORY_MARKER":
                continue
            kept[name] = self.plain(value)
        return kept

    def events(self):
        """Of --event-log-handler=console: those of one worker in their order, without times and pids."""
        found = []
        for line in self.err.splitlines():
            if line.startswith('{"name": "torchelastic.'):
                e = json.loads(line)
                for name in ("duration_ms", "total_run_time", "worker_id", "hostname"):
                    assert name in e["metadata"], e
                    e["metadata"][name] = e["metadata"][name] is not None
                inside = json.loads(e["metadata"]["metadata"])
                if "worker_pid" in inside:
                    inside["worker_pid"] = [inside["worker_pid"][0] is not None]
                e["metadata"]["metadata"] = inside
                e["metadata"]["run_id"] = self.plain(e["metadata"]["run_id"])
                if e["metadata"]["raw_error"] is not None:
                    e["metadata"]["raw_error"] = sorted(json.loads(e["metadata"]["raw_error"])["message"])  # words, not times
                found.append(e)
        return sorted(found, key=lambda e: (e["source"] == "AGENT", e["metadata"]["global_rank"] or 0))

    def report(self):
        """The block between the rules, without pids, times and hosts; the failures in the order of their ranks."""
        lines = self.err.splitlines()
        rules = [i for i, x in enumerate(lines) if re.fullmatch("={20,60}", x)]
        if len(rules) < 2:
            return None
        text = self.plain("\n".join(lines[rules[0] + 1:rules[-1]]))
        text = re.sub(r"pid: \d+", "pid: N", text)
        text = re.sub(r"PID \d+", "PID N", text)
        text = re.sub(r"(time +: ).*", r"\1T", text)
        text = re.sub(r"(host +: ).*", r"\1H", text)
        text = re.sub(r"^(  traceback : )(To enable traceback see|none left; see).*", r"\1NOTHING", text, flags=re.M)
        return re.sub(r"^-+$", "---", re.sub(r" +$", "", text, flags=re.M), flags=re.M)


def prepare(folder, name, who):
    """The case's folder, arguments and environment."""
    place = folder / name / who
    (place / "dest").mkdir(parents=True)
    (place / "package").mkdir()
    (place / "worker.py").write_text(WORKER)
    (place / "package" / "module.py").write_text(WORKER)
    (place / "worker.sh").write_text(SHELL)
    (place / "worker.sh").chmod(0o755)
    _, args, env = CASES[name]
    port = free_port() if any("{port}" in a for a in args) else 0
    args = [a.replace("{port}", str(port)).replace("{dir}", str(place)) for a in args]
    env = {k: v.replace("{dir}", str(place)) for k, v in env.items()}
    base = {k: v for k, v in support.clean_env().items() if k in ("PATH", "HOME", "STORY_MARKER")}
    return place, args, {**base, "PYTHON_EXEC": PEER_PYTHON, "DEST": str(place / "dest"), **env}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_both(folder, names):
    """Runs the cases under both launchers. Returns ({name: (torchrun's, ours)}, what torchrun's own parser knows)."""
    theirs, ours, cases = {}, {}, []
    for name in names:
        place, args, env = prepare(folder, name, "torchrun")
        theirs[name] = place
        cases.append({"args": args, "env": env, "cwd": str(place), "out": str(place / "OUT"), "err": str(place / "ERR")})
    listed = folder / "cases.json"
    listed.write_text(json.dumps(cases))
    done = subprocess.run([PEER_PYTHON, DRIVER, str(listed)], env=support.clean_env(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    for name in names:
        place, args, env = prepare(folder, name, "dtrun")
        with open(place / "OUT", "w") as out, open(place / "ERR", "w") as err:
            ours[name] = (place, subprocess.run([support.DTRUN, *args], env=env, cwd=place, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                                timeout=support.DEADLINE_S, check=False).returncode)
    return {n: (Outcome(theirs[n], code), Outcome(*ours[n])) for n, code in zip(names, told["codes"])}, told


def compare(theirs, ours):
    """What must be equal."""
    context = f"torchrun: code {theirs.code}\n{theirs.out[-800:]}\n{theirs.err[-1500:]}\ndtrun: code {ours.code}\n{ours.out[-800:]}\n{ours.err[-1500:]}"
    assert (theirs.code == 0) == (ours.code == 0), context
    assert theirs.workers.keys() == ours.workers.keys(), context
    for worker, his in theirs.workers.items():
        own = ours.workers[worker]
        assert [theirs.plain(a) for a in his["argv"]] == [ours.plain(a) for a in own["argv"]]
        spawned = "run_path" in str(theirs.folder)  # by Python's multiprocessing, in torchrun's own session
        assert theirs.plain(his["cwd"]) == ours.plain(own["cwd"])
        assert own["leader"] and own["pgid"] and (spawned or his["leader"] and his["pgid"])
        a, b = theirs.environment(worker), ours.environment(worker)
        for free in ("MASTER_ADDR", "MASTER_PORT"):
            fixed = "static" in str(theirs.folder) or "endpoint" in str(theirs.folder)
            assert (free in a) == (free in b)
            if not fixed:
                a.pop(free), b.pop(free)
        port = re.compile(r"^\d+$")
        assert all(port.match(x.get("MASTER_PORT", "1")) for x in (a, b))
        if "MASTER_PORT" in a:
            a["MASTER_PORT"] = b["MASTER_PORT"] = ""  # each had a free one of its own
        assert a == b, context
    assert theirs.said("out") == ours.said("out"), context
    assert theirs.said("err") == ours.said("err"), context
    assert theirs.tree() == ours.tree(), context
    assert ours.code == 2 or theirs.report() == ours.report(), context  # 2: refused before anything was started
    if theirs.above is not None:  # ours says something even where the worker left nothing
        assert {**theirs.above["message"], "extraInfo": None} == {**ours.above["message"], "extraInfo": None}
        assert theirs.above["message"]["extraInfo"].keys() == ours.above["message"]["extraInfo"].keys()
    assert theirs.events() == ours.events(), context


def check_options(known):
    """Each spelling that torchrun's parser knows is ours, too."""
    for spelling in sum(known, []):
        done = subprocess.run([support.DTRUN, spelling], env=support.clean_env(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=support.DEADLINE_S, check=False)
        assert "unknown option" not in done.stderr, (spelling, done.stderr)
