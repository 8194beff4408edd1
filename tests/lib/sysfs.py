"""Trees of files as /sys has them, for --numa_binding: nodes, cores, caches and PCI devices that a test describes."""

import os


def text_of(numbers):
    """0-2,4 as the kernel writes it."""
    out, numbers = [], sorted(numbers)
    while numbers:
        n = 1
        while n < len(numbers) and numbers[n] == numbers[0] + n:
            n += 1
        out.append(f"{numbers[0]}-{numbers[n - 1]}" if n > 1 else str(numbers[0]))
        numbers = numbers[n:]
    return ",".join(out)


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(f"{text}\n")


class Machine:
    """CPUs by (socket, node, complex, core, thread); a device is the node that the kernel says for it, -1 for none."""

    def __init__(self, sockets=1, nodes=1, complexes=1, cores=4, threads=1, devices=(), split_threads=False, offline=(), bare_nodes=(), possible=None):
        """Counts are of each socket's nodes, each node's complexes and so on; `cores` may be a list, one number per complex. split_threads: the second
        threads of all cores come after all first ones, as on most machines; offline: CPUs that are switched off; bare_nodes: nodes with memory only."""
        total = sockets * nodes * complexes
        cores = cores if isinstance(cores, list) else [cores] * total
        self.devices, self.nodes, self.cpus = list(devices), {n: set() for n in [*range(sockets * nodes), *bare_nodes]}, {}
        self.possible = set(self.nodes) if possible is None else possible
        core_total, core = sum(cores), 0
        for c in range(total):
            for _ in range(cores[c]):
                for t in range(threads):
                    cpu = t * core_total + core if split_threads else core * threads + t
                    if cpu not in offline:
                        self.cpus[cpu] = (c // complexes // nodes, c // complexes, c, core)
                        self.nodes[c // complexes].add(cpu)
                core += 1

    def sharing(self, cpu, what):
        return {c for c, place in self.cpus.items() if place[what] == self.cpus[cpu][what]}

    def address(self, i):
        return f"{i % 3:04x}:{0x3b + i:02x}:{i % 32:02x}.0"

    @property
    def addresses(self):
        return [self.address(i) for i in range(len(self.devices))]

    def write(self, root):
        system = os.path.join(root, "devices", "system")
        put(f"{system}/cpu/online", text_of(self.cpus))
        put(f"{system}/node/possible", text_of(self.possible))
        for n, cpus in self.nodes.items():
            put(f"{system}/node/node{n}/cpulist", text_of(cpus))
        for cpu, (socket, *_) in self.cpus.items():
            folder = f"{system}/cpu/cpu{cpu}"
            put(f"{folder}/topology/physical_package_id", socket)
            put(f"{folder}/topology/thread_siblings_list", text_of(self.sharing(cpu, 3)))
            caches = [(1, "Data", 3), (1, "Instruction", 3), (3, "Unified", 2), (2, "Unified", 3), (4, "Instruction", 0)]
            for i, (level, kind, shared) in enumerate(caches):
                put(f"{folder}/cache/index{i}/level", level)
                put(f"{folder}/cache/index{i}/type", kind)
                put(f"{folder}/cache/index{i}/shared_cpu_list", text_of(self.sharing(cpu, shared)))
            put(f"{folder}/cache/uevent", "")
        for i, node in enumerate(self.devices):
            put(f"{root}/bus/pci/devices/{self.address(i)}/numa_node", node)
        return root
