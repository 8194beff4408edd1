# covers: launcher worker/run
"""Soak: three hosts of two ranks train while a seed draws faults; the weights are those of the same world sizes undisturbed.
DTRUN_SEED=N draws the same faults at the same times again (default: by the clock, and printed), DTRUN_SOAK_S the time in which they come (60),
DTRUN_SOAK_UNTIL=K stops after K of them.
run: full
run: alone
run: timeout 900
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time

import hosts
import support
import training
from hosts import PORT, Rounds
from support import children, wait_until

SCALE = 3
ENDED = (0, 111)  # an agent that was killed


class Soak:
    def __init__(self, net, job, out, seed):
        self.net, self.out, self.random = net, str(out), random.Random(seed)
        self.args = ["--nnodes=2:3", "--rdzv_backend=c10d", f"--rdzv_endpoint=a:{PORT}", "--rdzv_id=soak", "--rdzv_conf=last_call_timeout=2",
                     f"--time_scale={SCALE}", "--max_restarts=1000", "--nproc_per_node=2", "train", str(job), "--output_dir", self.out]
        self.jobs = {h.name: h.job(self.args) for h in net.hosts}
        self.done, self.cleanup = [], []
        self.rounds = Rounds(*self.jobs.values())

    def over(self):
        return any(j.process.poll() is not None for j in self.jobs.values())

    # ---- faults: each makes good what it did, or leaves that to `later` ----

    def later(self, seconds, what):
        self.cleanup.append((time.monotonic() + seconds, what))

    def run_later(self, all_of_it=False):
        due = [c for c in self.cleanup if all_of_it or c[0] <= time.monotonic()]
        self.cleanup = [c for c in self.cleanup if c not in due]
        for _, what in due:
            what()

    def kill_worker(self, host, seconds):
        workers = children(self.jobs[host.name].agent)
        if workers:
            with contextlib.suppress(OSError):
                os.kill(workers[-1], signal.SIGKILL)

    def kill_agent(self, host, seconds):
        lost = self.jobs.pop(host.name)
        with contextlib.suppress(OSError):
            os.kill(lost.agent, signal.SIGKILL)
        self.done.append(lost.finish())
        lost.wait_gone()
        again = self.jobs[host.name] = host.job(self.args)
        again.agent
        self.rounds.jobs += (again,)

    def stop_agent(self, host, seconds):
        pid = self.jobs[host.name].agent
        os.kill(pid, signal.SIGSTOP)

        def go_on():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)

        self.later(seconds, go_on)

    def stop_worker(self, host, seconds):
        for pid in children(self.jobs[host.name].agent)[:1]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGSTOP)

            def go_on(pid=pid):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGCONT)

            self.later(seconds, go_on)

    def pull_cable(self, host, seconds):
        self.net.down(host)
        self.later(seconds, lambda: self.net.up(host))

    def cut_short(self, host, seconds):
        self.net.down(host)
        self.later(0.5, lambda: self.net.up(host))

    def cut_one_way(self, host, seconds):
        self.net.cut(*((host, h) for h in self.net.hosts if h is not host), both=False)
        self.later(seconds, self.net.heal)

    def cut_pair(self, host, seconds):
        self.net.cut((host, self.net.hosts[host.number % 3]))
        self.later(seconds, self.net.heal)

    def reset(self, host, seconds):
        subprocess.run(["ip", "netns", "exec", host.namespace, "ss", "-K", "state", "established"], capture_output=True)

    def lose_packets(self, host, seconds):
        rule = ["INPUT", "-i", "eth0", "-m", "statistic", "--mode", "random", "--probability", "0.2", "-j", "DROP"]
        hosts.tool("ip", "netns", "exec", host.namespace, "iptables", "-A", *rule)
        self.later(seconds, lambda: hosts.tool("ip", "netns", "exec", host.namespace, "iptables", "-D", *rule))

    def talk_nonsense(self, host, seconds):
        code = f"import os,socket\ns=socket.create_connection(('a',{PORT}),5)\ns.send(os.urandom(4096))"
        subprocess.run([*host.prefix(), support.PYTHON, "-c", code], capture_output=True)

    FAULTS = (kill_worker, kill_worker, kill_agent, stop_agent, stop_worker, pull_cable, cut_short, cut_one_way, cut_pair, reset, lose_packets, talk_nonsense)

    def disturb(self, seconds, until):
        end, count = time.monotonic() + seconds, 0
        while time.monotonic() < end and count < until:
            gap, fault, host = self.random.expovariate(1 / 3), self.random.choice(self.FAULTS), self.random.choice(self.net.hosts)
            length = self.random.uniform(1, 8)
            wake = time.monotonic() + gap
            while time.monotonic() < wake or self.cleanup:  # one at a time
                self.run_later()
                time.sleep(0.05)
                if self.over():
                    return count
            print(f"{count:3} {fault.__name__} {host.name} {length:.1f}", flush=True)
            fault(self, host, length)
            count += 1
        return count

    def finish(self):
        """Results of all; an agent that came when all was over is ended."""
        self.run_later(all_of_it=True)
        wait_until(self.over, "the end of the job", 600, step_s=0.2)
        wait_until(lambda: not any(children(j.agent_pid) for j in self.jobs.values() if j.process.poll() is None), "the end of all workers", 120)
        end = time.monotonic() + 30
        while time.monotonic() < end and any(j.process.poll() is None for j in self.jobs.values()):
            time.sleep(0.2)
        late = [j for j in self.jobs.values() if j.process.poll() is None]
        for j in late:
            j.kill()
        return [j.finish() for j in self.jobs.values() if j not in late]


def replay(job, out, rounds):
    """Trains on one host with the world sizes of a history, each from where the disturbed job had it."""
    for (_, world), following in zip(rounds, rounds[1:] + [None]):
        if following is not None and following[0] == 0:
            continue
        with support.Job([f"--nproc_per_node={world}", "train", job, "--output_dir", out]) as running:
            if following is None:
                result = running.finish(600)
                assert result.code == 0, result
                return
            wanted = os.path.join(out, "checkpoints", f"step-{following[0]:08d}", "manifest.json")
            wait_until(lambda: os.path.exists(wanted), wanted, 300)
        running.wait_gone()
        for name in os.listdir(os.path.join(out, "checkpoints")):
            if name.startswith("step-") and name > f"step-{following[0]:08d}":
                shutil.rmtree(os.path.join(out, "checkpoints", name))


def steps_in(folder, seconds):
    """As many as six undisturbed ranks of this machine do in a sixth of that time; faults take the rest, and more."""
    job, begin = training.make_job(folder, name="pace.json", steps=600, checkpointing={"save_every_n_steps": 0}), time.monotonic()
    result = training.train(job, folder / "pace", ranks=6)
    assert result.code == 0, result
    return int(600 / (time.monotonic() - begin) * seconds / 6)


def test_a_seed_of_faults(tmp_path):
    seed = int(os.environ.get("DTRUN_SEED") or time.time())
    seconds, until = float(os.environ.get("DTRUN_SOAK_S") or 60), int(os.environ.get("DTRUN_SOAK_UNTIL") or 1 << 30)
    print(f"seed {seed}", flush=True)
    steps = max(3000 + int(90 * max(0, seconds - 60)), steps_in(tmp_path, seconds))  # more than come in that time
    job = training.make_job(tmp_path, steps=steps, checkpointing={"save_every_n_steps": 20, "keep_last_n": 1000}, logging={"log_every_n_steps": 100})
    with hosts.network(3) as net:
        soak = Soak(net, job, tmp_path / "out", seed)
        try:
            with soak.rounds:
                count = soak.disturb(seconds, until)
                results = soak.finish()
        finally:
            for j in soak.jobs.values():
                j.kill()
    rounds = training.history(tmp_path / "out")
    print(f"{count} faults, rounds that trained: {rounds}", flush=True)
    assert count > 0 and results and all(r.code == 0 for r in results), (seed, results)
    assert all(r.code in ENDED for r in soak.done), (seed, soak.done)
    replay(job, str(tmp_path / "undisturbed"), rounds)
    assert training.hash_of(tmp_path / "undisturbed") == training.hash_of(tmp_path / "out"), (seed, rounds)
