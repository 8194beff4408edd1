"""The masks that torch's own functions find on trees that are not this machine's. Reads a JSON list of {root, allowed, addresses, mode} on stdin and
prints, for each, a list with the mask (sorted CPUs) or the error of each device."""

import json
import os
import sys
import types

import torch
from torch.numa import binding

real_open, real_list = open, os.listdir
case = {}


def below(path):
    assert path.startswith("/sys/"), path
    return case["root"] + path[len("/sys"):]


class Os:  # what the module uses of os
    path = os.path
    listdir = staticmethod(lambda path: real_list(below(path)))
    sched_getaffinity = staticmethod(lambda _: set(case["allowed"]))


def properties(index):
    domain, bus, slot = case["addresses"][index].split(".")[0].split(":")
    return types.SimpleNamespace(pci_domain_id=int(domain, 16), pci_bus_id=int(bus, 16), pci_device_id=int(slot, 16))


binding.open = lambda path: real_open(below(path))
binding.os = Os
torch.accelerator.is_available = lambda: True
torch.accelerator.current_accelerator = lambda: torch.device("cuda")
torch.accelerator.device_count = lambda: len(case["addresses"])
torch.get_device_module = lambda _: types.SimpleNamespace(get_device_properties=properties)

answers = []
for case in json.load(sys.stdin):  # noqa: B007 (the functions above read it)
    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(case["mode"]))
    answer = []
    for i in range(len(case["addresses"])):
        try:
            mask = sorted(binding._get_logical_cpus_to_bind_to(device_index=i, numa_options=options))
            answer.append(mask if mask else "error: empty")
        except Exception as e:
            answer.append(f"error: {type(e).__name__}: {e}")
    answers.append(answer)
json.dump(answers, sys.stdout)
