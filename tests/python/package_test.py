# SPDX-License-Identifier: Apache-2.0
"""State of the package bulkhead: what is laid out, moved and refused, without a job."""

import ctypes
import json
import os
import pickle
import queue
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from multiprocessing.reduction import ForkingPickler
from unittest import mock

import bulkhead
import numpy
import torch
from torch.nn.utils import prune
from bulkhead import Job, JobError, _convert, _device, _ends, _job, _local, _state, _tensors, attach
from bulkhead import _library as library
from bulkhead._state import State
from bulkhead.torchft import Manager as torchft_manager

try:
    from torch.distributed.fsdp import fully_shard
except (ImportError, ValueError):  # Debian's torch does not go with its Python
    fully_shard = None
try:
    import lightning_fabric
except ImportError:  # Debian has none
    lightning_fabric = None


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 5)
        self.second = torch.nn.Linear(5, 3)
        self.second.weight.requires_grad_(False)
        self.tied = self.first
        self.register_buffer("count", torch.tensor(7))


device = "cpu"  # of models and samples

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.1, centered=True),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.1),
}


class Replica:
    """A model, its optimizer and schedule, in flat memory."""

    def __init__(self, kind, seed):
        torch.manual_seed(seed)
        self.model = Net().to(device)
        self.optimizer = OPTIMIZERS[kind](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)
        self.state = State(self.model, self.optimizer, self.scheduler)
        self.memory = ctypes.create_string_buffer(self.state.bytes + 64)
        self.address = -(-ctypes.addressof(self.memory) // 64) * 64
        self.state.bind(self.address)

    def step(self, seed):
        torch.manual_seed(seed)
        for p in self.state.trained:
            p.grad = torch.randn_like(p)
        self.optimizer.step()
        self.scheduler.step()

    def bytes(self):
        self.state.gather()
        return ctypes.string_at(self.address, self.state.bytes)

    def take(self, given):
        ctypes.memmove(self.address, given, len(given))
        self.state.scatter()


class StateTest(unittest.TestCase):
    def test_a_joiner_goes_on_bit_for_bit_from_any_step(self):
        for kind in OPTIMIZERS:
            for steps in (0, 1, 3):
                with self.subTest(kind, steps=steps):
                    old, new = Replica(kind, 1), Replica(kind, 2)
                    for step in range(steps):
                        old.step(step)
                    new.take(old.bytes())
                    self.assertEqual(new.bytes(), old.bytes())
                    for step in range(steps, steps + 3):
                        old.step(step)
                        new.step(step)
                        self.assertEqual(new.bytes(), old.bytes())

    def test_one_that_has_stepped_goes_back_to_the_beginning(self):
        for kind in OPTIMIZERS:
            with self.subTest(kind):
                old, new = Replica(kind, 1), Replica(kind, 2)
                new.step(5)
                new.take(old.bytes())
                old.step(0)
                new.step(0)
                self.assertEqual(new.bytes(), old.bytes())

    def test_registering_changes_nothing_that_training_sees(self):
        for kind in OPTIMIZERS:
            with self.subTest(kind):
                replica = Replica(kind, 1)
                torch.manual_seed(1)
                model = Net().to(device)
                optimizer = OPTIMIZERS[kind](model.parameters())
                for step in range(3):
                    torch.manual_seed(step)
                    for p in model.parameters():
                        p.grad = torch.randn_like(p) if p.requires_grad else None
                    optimizer.step()
                    replica.scheduler.step = lambda: None
                    replica.step(step)
                for ours, theirs in zip(replica.model.parameters(), model.parameters()):
                    self.assertTrue(torch.equal(ours, theirs))

    def test_an_optimizer_with_values_of_its_own_is_put_back(self):
        class Odd(torch.optim.SGD):
            def __init__(self, parameters):
                super().__init__(parameters, lr=0.1)
                self.seen, self.names, self.total = 0, ["a"], torch.zeros(2)
                self.param_groups[0].update(k=0, weight=torch.ones(2))

            def step(self, closure=None):
                self.seen += 1
                self.names.append("b")
                self.total += 1
                self.later = 1
                self.param_groups[0]["k"] += 1
                self.param_groups[0]["weight"] = self.param_groups[0]["weight"] * 2
                return super().step(closure)

        model = Net().to(device)
        optimizer = Odd(model.parameters())
        weight, names = optimizer.param_groups[0]["weight"], optimizer.names
        State(model, optimizer, None)
        self.assertEqual((optimizer.seen, optimizer.names, optimizer.total.tolist()), (0, ["a"], [0, 0]))
        self.assertEqual((optimizer.param_groups[0]["k"], weight.tolist()), (0, [1, 1]))
        self.assertIs(optimizer.param_groups[0]["weight"], weight)
        self.assertIs(optimizer.names, names)
        self.assertFalse(hasattr(optimizer, "later"))

    def test_what_an_optimizer_first_keeps_in_a_later_step_is_refused(self):
        for change, words in ((lambda o: o.state[o.param_groups[0]["params"][0]].update(slow=1), "keeps slow of parameter"),
                              (lambda o: o.param_groups[0].update(k=1), "has k in its group 0")):
            replica = Replica("momentum", 1)
            replica.step(1)
            replica.state.gather()
            change(replica.optimizer)
            with self.assertRaisesRegex(JobError, words):
                replica.state.gather()

    def test_parameters_come_first_and_are_the_memory_itself(self):
        replica = Replica("adamw", 1)
        self.assertEqual(replica.state.parameter_bytes, 64 * 4)
        ctypes.memset(replica.address, 0, replica.state.parameter_bytes)
        self.assertEqual(replica.model.first.weight.abs().sum(), 0)
        self.assertIs(replica.model.tied.weight, replica.model.first.weight)

    def test_frozen_parameters_and_buffers_are_state(self):
        old, new = Replica("sgd", 1), Replica("sgd", 2)
        old.model.count.fill_(9)
        new.take(old.bytes())
        self.assertEqual(new.model.count, 9)
        self.assertTrue(torch.equal(new.model.second.weight, old.model.second.weight))

    def test_the_table_has_the_names_of_state_dict_where_their_bytes_are(self):
        for kind in OPTIMIZERS:
            with self.subTest(kind):
                replica = Replica(kind, 1)
                replica.step(1)
                state = replica.bytes()
                table = json.loads(json.dumps(replica.state.table("Net")))
                parts = {part["name"]: part for part in table["tensors"]}
                alias = {one["name"]: one["of"] for one in table["aliases"]}
                self.assertEqual(alias, {"tied.weight": "first.weight", "tied.bias": "first.bias"})
                self.assertEqual({name for name, part in parts.items() if "path" not in part} | set(alias),
                                 set(replica.model.state_dict()))
                for name, value in replica.model.state_dict().items():
                    part = parts[alias.get(name, name)]
                    self.assertEqual(part["dtype"], {torch.float32: "F32", torch.int64: "I64"}[value.dtype])
                    begin = part["offset"]
                    read = torch.frombuffer(bytearray(state[begin:begin + 4 * value.numel()]), dtype=value.dtype,
                                            count=value.numel()) if part["dtype"] == "F32" else \
                        torch.frombuffer(bytearray(state[begin:begin + 8]), dtype=value.dtype)
                    self.assertTrue(torch.equal(read.view(part["shape"]), value.cpu()), name)
                for number, kept in replica.optimizer.state_dict()["state"].items():
                    name = ["first.weight", "first.bias", "second.weight", "second.bias"][number]
                    if name == "second.weight":  # frozen: Adagrad has something of it, that never changes
                        continue
                    self.assertEqual(parts[f"optimizer.state.{name}"]["kind"], "presence")
                    for key in kept:
                        self.assertEqual(parts[f"optimizer.state.{name}.{key}"]["path"],
                                         ["optimizer", "state", name, key])
                self.assertIn("scheduler.last_epoch", parts)
                self.assertEqual(parts["optimizer.param_groups.0.lr"]["kind"], "number")
                fixed = {tuple(one["path"]): one["value"] for one in table["constants"]}
                self.assertEqual(fixed["optimizer", "param_groups", 0, "params"],
                                 ["first.weight", "first.bias", "second.weight", "second.bias"])

    def test_a_file_of_torch_becomes_a_safetensors_file_once(self):
        with tempfile.TemporaryDirectory() as folder:
            source, target = os.path.join(folder, "a.pt"), os.path.join(folder, "a.safetensors")
            model = {"w": torch.arange(6.0).view(2, 3).t(), "n": torch.tensor(7), "h": torch.ones(2).bfloat16()}
            torch.save({"model": model}, source)
            self.assertEqual(_convert.to_safetensors(source, target), 3)
            with open(target, "rb") as file:
                header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
                data = file.read()
            self.assertEqual(header["w"], {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]})
            self.assertEqual(struct.unpack("<6f", data[:24]), (0, 3, 1, 4, 2, 5))
            self.assertEqual((header["n"]["dtype"], header["n"]["shape"], header["h"]["dtype"]), ("I64", [], "BF16"))
            with self.assertRaisesRegex(ValueError, "a.safetensors exists"):
                _convert.to_safetensors(source, target)
            torch.save({"w": torch.ones(1), "step": 3}, source)
            with self.assertRaisesRegex(ValueError, "a.pt: step is a int, which no safetensors"):
                _convert.to_safetensors(source, target + "2")
            torch.save({"w": torch.ones(1), "__metadata__": torch.ones(1)}, source)
            with self.assertRaisesRegex(ValueError, "a.pt: a tensor is called __metadata__"):
                _convert.to_safetensors(source, target + "2")
            self.assertEqual(sorted(os.listdir(folder)), ["a.pt", "a.safetensors"])

    def test_a_part_of_a_sharded_tensor_says_where_it_lies(self):
        class Shard:
            def __init__(self, dim):
                self.dim = dim

            def is_replicate(self):
                return False

        class Replicate(Shard):
            def is_replicate(self):
                return True

        class Odd(Shard):
            def __repr__(self):
                return "Odd"

        class Mesh:
            def size(self, axis):
                return (2, 3)[axis]

            def get_coordinate(self):
                return [1, 2]

        class Sharded:
            device_mesh = Mesh()
            shape = torch.Size([5, 4])

            def __init__(self, local, *placements):
                self._local_tensor, self.placements = torch.zeros(local), placements

            def dim(self):
                return 2

        with mock.patch.dict(sys.modules, {"torch.distributed.tensor": mock.Mock(DTensor=Sharded, Shard=Shard)}):
            self.assertEqual(_tensors.part_of(Sharded((2, 4), Shard(0))),
                             {"shape": [5, 4], "begin": [3, 0], "extent": [2, 4]})
            self.assertEqual(_tensors.part_of(Sharded((2, 0), Shard(0), Shard(-1))),
                             {"shape": [5, 4], "begin": [3, 4], "extent": [2, 0]})
            self.assertEqual(_tensors.part_of(Sharded((0, 4), Shard(0), Shard(0))),
                             {"shape": [5, 4], "begin": [5, 0], "extent": [0, 4]})
            self.assertEqual(_tensors.part_of(Sharded((5, 4), Replicate(0))),
                             {"shape": [5, 4], "begin": [0, 0], "extent": [5, 4]})
            for odd in (Sharded((2, 4), Odd(0)), Sharded((1, 4), Shard(0))):
                self.assertIn("unknown_layout", _tensors.part_of(odd))

    def refused(self, words, model, optimizer=None):
        if optimizer is None:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with self.assertRaises(JobError) as caught:
            State(model, optimizer, None)
        self.assertIn(words, str(caught.exception))

    def test_what_cannot_be_equal_on_all_replicas_is_refused_by_name(self):
        nn = torch.nn
        self.refused("module 1 (BatchNorm1d) keeps running statistics",
                     nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        self.refused("module 0 (Embedding) has sparse gradients",
                     nn.Sequential(nn.Embedding(3, 2, sparse=True)))
        self.refused("parameter weight is torch.bfloat16", nn.Linear(2, 2).bfloat16())
        model = nn.Linear(2, 2)
        model.odd = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
        self.refused("parameter odd is torch.complex64", model)
        self.refused("train torch.view_as_real() of it", model)
        model = nn.Linear(2, 2)
        self.refused("LBFGS", model, torch.optim.LBFGS(model.parameters()))
        other = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(2))], lr=0.1)
        self.refused("parameter 2 of the optimizer's group 0", model, other)

    def test_a_process_that_no_agent_started_is_told_how_to_start_it(self):
        with self.assertRaises(JobError) as caught:
            attach()
        self.assertIn("BULKHEAD_JOB is missing", str(caught.exception))
        self.assertIn("bulkheadctl up -- PROGRAM", str(caught.exception))


class Said:
    """In the library's place: leases samples and notes what the loop tells. It is alone, so that the
    sum is its gradient; a step counts four samples of ten tokens."""

    def __init__(self, steps, shard=0, shards=1, run_dir="/nowhere"):
        self.steps = list(steps)
        self.place_in_replica = shard, shards
        self.run_dir = run_dir.encode()
        self.ready, self.figures, self.blocks = [], [], []
        self.committed = []  # samples of the job's first steps; of the others four

    def describe(self, rank, says):
        names = (ctypes.c_char_p * 2)(b"web", b"code")
        out = says._obj
        out.job, out.seed, out.domains, out.domain_names = b"run", 5, 2, names
        out.replica, out.replicas, out.incarnation = 1, 4, 1
        out.shard, out.shards, out.address, out.run_dir = *self.place_in_replica, b"127.0.0.1", self.run_dir
        out.sequence_length, out.samples_per_replica = 10, 4
        out.progress_floor_ms, out.progress_multiple = 60_000, 8

    def memory(self, rank, sizes, blocks):
        self.sizes = sizes._obj.gradient_floats, sizes._obj.other_floats
        self.state_bytes = sizes._obj.state_bytes
        blocks._obj.state = self.blocks_state = self.allocate(self.state_bytes)
        blocks._obj.gradient = self.gradient = self.allocate(4 * sizes._obj.gradient_floats)
        return 0

    def allocate(self, size):
        self.blocks.append(ctypes.create_string_buffer(size + 64))
        return -(-ctypes.addressof(self.blocks[-1]) // 64) * 64

    def __getattr__(self, name):
        return lambda *arguments: 0

    def start(self, rank, program):
        self.program = program._obj
        return 0

    def next(self, rank, work):
        out = work._obj
        if self.figures:
            samples = self.committed.pop(0) if self.committed else 4
            update = library.Update(len(self.figures), len(self.figures), samples, 1 / 40, 1.0)
            if self.program.update(None, self.gradient, ctypes.byref(update)) != 0:
                return library.FAILED
        if not self.steps:
            out.why = b"done"
            return library.LEFT
        self.ranges = self.steps.pop(0)
        out.step, out.range_count, out.ranges = 1, len(self.ranges), (library.Range * 9)(
            *(library.Range(*r) for r in self.ranges))
        shard, shards = self.place_in_replica
        dealt = [(d, i) for d, begin, end in self.ranges for i in range(begin, end)][shard::shards]
        out.sample_count, out.samples = len(dealt), (library.Sample * 99)(*(library.Sample(*s) for s in dealt))
        self.ready.clear()
        return library.STEP

    def place(self, rank, domain, index, size):
        return size - 1 - index % size

    def gradient_ready(self, rank, begin, end):
        self.ready.append((begin, end))

    def computed(self, rank, figures):
        told = figures._obj
        self.scalars = {told.scalar_names[i]: told.scalar_values[i] for i in range(told.scalars)}
        self.chosen = [told.expert_counts[i] for i in range(8)] if told.expert_counts else None
        self.figures.append((told.loss, told.tokens, told.domain_loss[0], told.domain_tokens[1]))


def job_of(steps, model=None, shard=0, shards=1, whole=False, momentum=0.0, **options):
    said = Said(steps, shard, shards)

    job = Job(said, 1)
    model = (model or torch.nn.Linear(1, 1, bias=False)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=momentum)
    job.register(model=model, optimizer=optimizer, **options)
    one = torch.ones(1, device=device)
    data = job.dataset({"code": [one * 2] * 3, "web": [one] * 5}, whole=whole)
    return job, said, model, data


class LoopTest(unittest.TestCase):
    def test_the_update_is_the_mean_over_all_samples_whatever_the_batches(self):
        job, said, model, data = job_of([[(0, 0, 3), (1, 7, 8)]])
        torch.nn.init.zeros_(model.weight)
        for step in job:
            self.assertEqual(step.samples, 4)
            for x in step.batches(data, 3):
                step.backward(model(x).mean())
        # Three samples of 1 and one of 2, weighted alike: a mean of 5 / 4.
        self.assertAlmostEqual(model.weight.item(), -1.25, places=6)
        self.assertEqual(said.figures, [(0.0, 40, 0.0, 10)])

    def test_a_gradient_leaves_when_its_last_batch_has_made_it_final_and_once(self):
        job, said, model, data = job_of([[(0, 0, 4)]])
        for step in job:
            for number, x in enumerate(step.batches(data, 1)):
                step.backward(model(x).mean())
                self.assertEqual(said.ready, [(0, 16)] if number == 3 else [])
        self.assertEqual(len(said.figures), 1)

    def test_a_parameter_that_took_no_part_is_told_all_the_same(self):
        model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
        job, said, model, data = job_of([[(0, 0, 1)]], model)
        before = model[1].weight.item()
        for step in job:
            for x in step.batches(data, 1):
                step.backward(model[0](x).mean())
        self.assertEqual(sorted(said.ready), [(0, 16), (16, 32)])
        self.assertEqual(model[1].weight.item(), before)

    def test_what_zero_grad_took_away_is_put_back(self):
        job, said, model, data = job_of([[(0, 0, 2)]])
        torch.nn.init.zeros_(model.weight)
        for step in job:
            for x in step.batches(data, 2):
                model.weight.grad = None
                step.backward(model(x).mean())
        self.assertEqual(model.weight.grad.data_ptr(), said.gradient)
        self.assertAlmostEqual(model.weight.item(), -0.5, places=6)  # 2 of the 4 samples are ours

    def test_what_moves_tensors_to_other_memory_changes_nothing(self):
        def pickled(model, optimizer):  # as a queue to another process does
            ForkingPickler.dumps(model.state_dict())

        def shares_optimizer(model, optimizer):
            for kept in optimizer.state.values():
                for value in kept.values():
                    value.share_memory_()

        def nothing(model, optimizer):
            pass

        def train(move, when):
            torch.manual_seed(1)
            job, said, model, data = job_of([[(0, 0, 4)]] * 4, torch.nn.Linear(1, 1), momentum=0.9)
            for at, step in enumerate(job):
                for number, x in enumerate(step.batches(data, 2)):
                    if (at, number) == when:
                        move(model, job._optimizer)
                    step.backward(model(x).square().mean() / 10)
                if (at, 2) == when:
                    move(model, job._optimizer)
            job._state.gather()
            return ctypes.string_at(said.blocks_state, said.state_bytes), model.weight.item()

        expected = train(nothing, (2, 0))
        for move in (lambda model, _: model.share_memory(), lambda model, _: model.double().float(), pickled,
                     shares_optimizer):
            for when in ((2, 0), (2, 1), (2, 2)):
                with self.subTest((move, when)):
                    self.assertEqual(train(move, when), expected)

    def test_before_update_sees_the_mean_and_may_clip_it(self):
        seen = []
        model = torch.nn.Linear(1, 1, bias=False)
        job, said, model, data = job_of(
            [[(0, 0, 4)]], model, before_update=lambda: seen.append(model.weight.grad.item()) or
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        torch.nn.init.zeros_(model.weight)
        for step in job:
            for x in step.batches(data, 4):
                step.backward(model(x).mean())
        self.assertEqual(seen, [1.0])
        self.assertAlmostEqual(model.weight.item(), -0.5, places=5)

    def test_metrics_replace_the_loss_that_is_told(self):
        job, said, model, data = job_of([[(0, 0, 4)]])
        for step in job:
            for x in step.batches(data, 4):
                step.backward(model(x).mean() * 3)
            step.metrics(loss=2.5)
        self.assertEqual(said.figures[0][0], 100.0)  # 2.5 over 40 tokens

    def test_figures_of_the_users_own_are_told_with_the_step(self):
        job, said, model, data = job_of([[(0, 0, 4)]])
        for step in job:
            for x in step.batches(data, 4):
                step.backward(model(x).mean())
                step.log(accuracy=torch.tensor(0.5), largest=9)
            step.log(accuracy=0.75)
            with self.assertRaises(ValueError):
                step.log(**{"x" * 65: 1})
        self.assertEqual(said.scalars, {b"accuracy": 0.75, b"largest": 9})

    def test_chosen_experts_are_counted_by_layer_and_domain(self):
        # Two domains, two layers of two experts; one sample of two is of the second domain.
        job, said, model, data = job_of([[(0, 0, 1), (1, 0, 2)]], experts=bulkhead.Experts(2, 2, 1))
        for step in job:
            for x in step.batches(data, 2):
                step.experts(1, torch.tensor([[1, 1], [0, 1]][:len(x)]))
                step.backward(model(x).mean())
        # The first batch: sample of domain 0 chose 1 and 1, that of domain 1 0 and 1; the second: 1 and 1.
        self.assertEqual(said.chosen, [0, 0, 0, 0, 0, 2, 1, 3])

    def test_a_rank_that_has_every_sample_tells_of_its_own_experts(self):
        job, said, model, data = job_of([[(0, 0, 2)]], shard=1, shards=2, whole=True,
                                        experts=bulkhead.Experts(2, 2, 1, shard=[[0, 1], [1, 0]]))
        for step in job:
            for x in step.batches(data, 2):
                for layer in (0, 1):
                    step.experts(layer, torch.tensor([0, 1]))
                step.backward(model(x).mean())
        self.assertEqual(said.chosen, [0, 1, 0, 0, 1, 0, 0, 0])

    def test_experts_that_are_not_the_models_are_refused(self):
        for words, chosen in (("expert 0 to 2; expected 0 to 1", torch.tensor([0, 2])),
                              ("expected whole numbers", torch.tensor([0.5, 1.0])),
                              ("equally many for each of 2 samples", torch.tensor([0, 1, 1]))):
            job, said, model, data = job_of([[(0, 0, 2)]], experts=bulkhead.Experts(1, 2, 1))
            with self.assertRaisesRegex(ValueError, words):
                for step in job:
                    for _ in step.batches(data, 2):
                        step.experts(0, chosen)
        job, said, model, data = job_of([[(0, 0, 2)]])
        with self.assertRaisesRegex(RuntimeError, "without register"):
            for step in job:
                step.experts(0, torch.tensor([0]))
        for words, experts in (("lists of 2", bulkhead.Experts(2, 2, 1, shard=[[0, 0]])),
                               ("names rank 1 of a replica", bulkhead.Experts(1, 2, 1, shard=[[0, 1]])),
                               ("1 to 2 choices", bulkhead.Experts(1, 2, 3)),
                               ("1,048,576 counts", bulkhead.Experts(1 << 12, 1 << 8, 1))):
            with self.assertRaisesRegex(JobError, words):
                job_of([], experts=experts)

    def wrong(self, words, body, steps=((0, 0, 4),)):
        job, said, model, data = job_of([list(steps)])
        with self.assertRaises((RuntimeError, ValueError)) as caught:
            for step in job:
                body(step, model, data)
        self.assertIn(words, str(caught.exception))
        self.assertEqual(said.figures, [])

    def test_samples_that_were_not_trained_on_do_not_count(self):
        self.wrong("ended with 0 of 4 samples trained on", lambda step, model, data: None)
        self.wrong("a loss of type float", lambda step, model, data: [step.backward(1.0) for _ in step.batches(data, 4)])
        self.wrong("a batch had no backward()", lambda step, model, data: list(step.batches(data, 4)))
        self.wrong("backward() without a batch", lambda step, model, data: step.backward(model.weight.sum()))

        def twice(step, model, data):
            for x in step.batches(data, 4):
                step.backward(model(x).mean())
                step.backward(model(x).mean())

        self.wrong("backward() without a batch", twice)

        def beside(step, model, data):
            for x in step.batches(data, 4):
                step.backward(model(x).mean())
                model(x).mean().backward()

        self.wrong("a second gradient after the step's last one", beside)

        def steps_itself(step, model, data):
            for x in step.batches(data, 4):
                step.backward(model(x).mean())
                torch.optim.SGD(model.parameters(), lr=0.1).step()

        self.wrong("remove optimizer.step()", steps_itself)
        for to_none in (True, False):
            def clears(step, model, data):
                for x in step.batches(data, 2):
                    if to_none:
                        model.weight.grad = None
                    elif model.weight.grad is not None:
                        model.weight.grad.zero_()
                    step.backward(model(x).mean())

            self.wrong("remove zero_grad(), and clip in register", clears)

        def clamps(step, model, data):  # the gradient has left for the others
            for x in step.batches(data, 4):
                step.backward(model(x).mean())
            model.weight.grad.data.mul_(0.5)

        self.wrong("the gradient of parameter weight changed after it had left", clamps)

        def another(step, model, data):
            for x in step.batches(data, 4):
                step.backward(model(x).mean())
            model.weight.grad.data = model.weight.grad.data + 1

        self.wrong("the gradient of parameter weight changed after it had left", another)

        def clips_weights(step, model, data):  # a joiner would not
            model.weight.data.mul_(0.5)
            for x in step.batches(data, 4):
                step.backward(model(x).mean())

        self.wrong("parameter weight changed in the body of the loop", clips_weights)

        def doubles(step, model, data):
            model.double()
            for x in step.batches(data, 4):
                step.backward(model(x.double()).mean())

        self.wrong("parameter weight changed in the body of the loop", doubles)

        def vector(step, model, data):
            for x in step.batches(data, 4):
                step.backward(model(x))

        self.wrong("expected the mean over the batch", vector)

    def test_gradients_whose_signs_turn_are_seen_however_many(self):
        for shape in (1, 2), (1, 3), (1, 4), (3, 2):
            job, said, model, data = job_of([[(0, 0, 4)]], model=torch.nn.Linear(*shape))
            with self.assertRaisesRegex(RuntimeError, "the gradient of parameter weight changed after it had left"):
                for step in job:
                    for x in step.batches(data, 4):
                        step.backward(model(x.expand(len(x), shape[0])).mean())
                    model.weight.grad.data.neg_()

    def test_a_change_that_torch_does_not_count_is_seen_in_a_later_step_too(self):
        steps = 40
        job, said, model, data = job_of([[(0, 4 * at, 4 * at + 4)] for at in range(steps)])
        seen = []
        with self.assertRaises(RuntimeError) as caught:
            for step in job:
                seen.append(step.number)
                for x in step.batches(data, 4):
                    step.backward(model(x).mean())
                if len(seen) > 5:
                    model.weight.grad.detach().cpu().numpy()[:] *= 0.5
                    model.weight.grad.data.mul_(0.5)
        self.assertIn("changed after it had left", str(caught.exception))
        self.assertNotIsInstance(caught.exception, JobError)  # a bit that flipped is no fault of the program
        self.assertLessEqual(len(seen), 5 + 16)

    def test_a_gradient_that_is_not_finite_is_left_to_the_exchange(self):
        job, said, model, data = job_of([[(0, 0, 4)]])
        for step in job:
            for x in step.batches(data, 4):
                step.backward(model(x).mean())
            model.weight.grad.data.fill_(float("nan"))
        self.assertEqual(len(said.figures), 1)

    def test_a_frozen_parameter_that_changes_in_the_loop_is_named(self):
        model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
        model[0].weight.requires_grad_(False)
        job, said, model, data = job_of([[(0, 0, 4)]], model)
        with self.assertRaises(JobError) as caught:
            for step in job:
                for x in step.batches(data, 4):
                    step.backward(model(x).mean())
                with torch.no_grad():
                    model[0].weight.mul_(0.9)  # an average of weights, say
        self.assertIn("parameter 0.weight changed in the body of the loop", str(caught.exception))

    def test_a_buffer_that_changes_in_a_later_step_is_named(self):
        class Late(torch.nn.Linear):
            def __init__(self):
                super().__init__(1, 1, bias=False)
                self.register_buffer("seen", torch.full((2,), float("nan")))  # equal to itself all the same

        job, said, model, data = job_of([[(0, 4 * at, 4 * at + 4)] for at in range(8)], Late())
        seen = []
        with self.assertRaises(JobError) as caught:
            for step in job:
                seen.append(step.number)
                for x in step.batches(data, 4):
                    step.backward(model(x).mean())
                model.seen.copy_(model.seen.clone() if len(seen) < 4 else torch.tensor([len(seen), 0.0]))
        self.assertIn("buffer seen changes in the forward pass", str(caught.exception))
        self.assertEqual(len(seen), 4)

    def test_a_module_that_is_wrapped_after_register_keeps_its_buffers(self):
        job, said, model, data = job_of([[(0, 0, 4)], [(0, 4, 8)]], torch.nn.Sequential(torch.nn.BatchNorm1d(1)),
                                        buffers="reduced")
        model[0] = torch.nn.Sequential(model[0])
        for step in job:
            for x in step.batches(data, 4):
                step.backward(model(x).mean())
        self.assertEqual(len(said.figures), 2)

    def test_a_buffer_that_is_added_in_the_loop_is_refused(self):
        job, said, model, data = job_of([[(0, 0, 4)], [(0, 4, 8)]])
        model.register_buffer("table", torch.zeros(3, device=device), persistent=False)
        with self.assertRaises(JobError) as caught:
            for step in job:
                prune.l1_unstructured(model, "weight", amount=0)
                for x in step.batches(data, 4):
                    step.backward(model(x).mean())
        self.assertIn("buffer weight_mask was added after register()", str(caught.exception))

    def test_a_buffer_that_the_forward_pass_changes_is_named(self):
        class Counting(torch.nn.Linear):
            def __init__(self):
                super().__init__(1, 1, bias=False)
                self.register_buffer("seen", torch.zeros(()))

            def forward(self, x):
                self.seen += 1
                return super().forward(x)

        job, said, model, data = job_of([[(0, 0, 4)]], Counting())
        with self.assertRaises(JobError) as caught:
            for step in job:
                for x in step.batches(data, 4):
                    step.backward(model(x).mean())
        self.assertIn("buffer seen changes in the forward pass", str(caught.exception))

    def test_buffers_that_are_reduced_are_the_mean_over_all_samples(self):
        model = torch.nn.Sequential(torch.nn.BatchNorm1d(1, momentum=0.5), torch.nn.Linear(1, 1))
        job, said, model, data = job_of([[(0, 0, 4)], [(0, 4, 6)]], model, buffers="reduced")
        samples = [torch.tensor([[1.0], [3.0], [8.0], [2.0]], device=device),
                   torch.tensor([[7.0], [9.0]], device=device)]
        seen = []
        for step, rows in zip(job, samples):
            for _ in step.batches(data, 4):
                seen.append(model[0].running_mean.item())  # the state's, whatever this step makes of it
                step.backward(model(rows).mean())
        self.assertEqual(seen[0], 0)
        self.assertAlmostEqual(seen[1], 1.75, places=5)
        self.assertEqual(model[0].num_batches_tracked.item(), 1)  # two of four samples: half of 2
        self.assertEqual(said.ready[-1], (0, 48))
        self.assertEqual(model[0].num_batches_tracked.dtype, torch.int64)
        self.assertEqual(said.sizes, (48 + 64, 48))

    def test_an_exception_in_the_update_comes_out_of_the_loop(self):
        def fails():
            raise KeyError("clip")

        job, said, model, data = job_of([[(0, 0, 4)]], before_update=fails)
        with self.assertRaises(KeyError):
            for step in job:
                for x in step.batches(data, 4):
                    step.backward(model(x).mean())

    def test_an_optimizer_that_changes_what_it_trains_is_refused_before_it_steps(self):
        class Thawing(torch.nn.Sequential):
            def __init__(self):
                super().__init__(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
                self[1].weight.requires_grad_(False)

        model = Thawing()
        before = model[0].weight.item()
        job, said, model, data = job_of([[(0, 0, 4)]], model)
        with self.assertRaises(JobError) as caught:
            for step in job:
                for x in step.batches(data, 4):
                    step.backward(model(x).mean())
                model[1].weight.requires_grad_(True)
        self.assertIn("trains 2 parameters, with register() it had 1", str(caught.exception))
        self.assertIn("before register()", str(caught.exception))
        self.assertEqual(model[0].weight.item(), before)

    def test_a_parameter_that_is_replaced_after_register_is_named(self):
        job, said, model, data = job_of([[(0, 0, 4)]])
        model.weight = torch.nn.Parameter(torch.ones(1, 1, device=device))
        with self.assertRaisesRegex(JobError, "parameter weight is another tensor than register"):
            for step in job:
                for x in step.batches(data, 4):
                    step.backward(model(x).mean())

    def test_what_a_replica_that_catches_up_would_not_run_is_named(self):
        def rate(model, optimizer):
            optimizer.param_groups[0]["lr"] = 0.5

        def loads(model, optimizer):
            optimizer.load_state_dict(optimizer.state_dict())

        def kept(model, optimizer):
            optimizer.state[model.weight]["momentum_buffer"].mul_(2)

        inside = ".* changed in the body of the loop"
        for change, words in ((rate, "group 0.lr" + inside), (kept, "momentum_buffer" + inside),
                              (loads, "load it before register")):
            job, said, model, data = job_of([[(0, 0, 4)], [(0, 4, 4)]], momentum=0.9)
            with self.subTest(words), self.assertRaisesRegex(JobError, words):
                for number, step in enumerate(job):
                    for x in step.batches(data, 4):
                        step.backward(model(x).mean())
                    if number == 1:
                        change(model, job._optimizer)

    def test_a_scheduler_that_needs_a_figure_is_refused(self):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        with self.assertRaisesRegex(JobError, "ReduceLROnPlateau.step.. needs an argument"):
            State(model, optimizer, plateau)

    def test_a_cause_is_one_line_whatever_the_exception_says(self):
        for words in ("a\0b", "x\n\ty", "z \udcff", "long " * 1000):
            try:
                raise RuntimeError(words)
            except RuntimeError as error:
                line = _ends.cause(error)
            line.encode()
            self.assertTrue(line.isprintable())
            self.assertLess(len(line), 600)
            self.assertRegex(line, "^RuntimeError: .*; at package_test.py:")

    def test_datasets_must_be_the_jobs(self):
        job, said, model, data = job_of([])
        for given, words in (([1, 2], "give a dictionary"), ({"web": [1]}, "name them alike"),
                             ({"web": [1], "code": []}, "domain code is empty")):
            with self.assertRaises(JobError) as caught:
                job.dataset(given)
            self.assertIn(words, str(caught.exception))
        with self.assertRaises(JobError):
            job.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))


class Apart:
    """As with tensors of a GPU, none is a view of flat memory."""

    def setUp(self):
        for module in (_state, _job):
            self.patch(mock.patch.object(module, "is_apart", lambda tensor: True))
        self.patch(mock.patch.object(_state, "_Tensor", _state._Copied))

    def patch(self, patch):
        patch.start()
        self.addCleanup(patch.stop)

    test_parameters_come_first_and_are_the_memory_itself = None
    test_what_zero_grad_took_away_is_put_back = None  # there is no view to put back


class ApartStateTest(Apart, StateTest):
    pass


class ApartLoopTest(Apart, LoopTest):
    pass


if torch.cuda.is_available():
    class Cuda(Apart):
        def setUp(self):
            self.patch(mock.patch.object(sys.modules[__name__], "device", "cuda"))

    class CudaStateTest(Cuda, StateTest):
        test_a_process_that_no_agent_started_is_told_how_to_start_it = None  # has no tensors

    class CudaLoopTest(Cuda, LoopTest):
        test_a_rank_that_has_every_sample_tells_of_its_own_experts = None  # one of two: refused

        def test_several_ranks_in_a_replica_are_refused(self):
            with self.assertRaisesRegex(JobError, "set shards = 1"):
                job_of([[(0, 0, 2)]], shard=1, shards=2)


class Rows:
    """Samples with noise, that know who loaded them."""

    def __len__(self):
        return 8

    def __getitem__(self, at):
        if at == 7:
            raise ValueError("no such row")
        if at == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor([at, os.getpid(), torch.rand(1).item(), random.random(), numpy.random.rand()],
                            dtype=torch.float64)


class DeviceTest(unittest.TestCase):
    def test_memory_of_a_gpu_is_seen_where_it_is(self):
        gpu = _device.Gpu()
        gpu._TYPE = 1 if device == "cpu" else gpu._TYPE
        memory = torch.arange(10.0, device=device)
        whole, part = gpu.view(memory.data_ptr(), 10), gpu.view(memory.data_ptr() + 16, 3)
        self.assertEqual((whole.device, whole.dtype), (memory.device, torch.float32))
        part.mul_(10)
        self.assertEqual(whole.tolist(), [0, 1, 2, 3, 40, 50, 60, 7, 8, 9])
        self.assertIs(gpu.view(memory.data_ptr(), 10), whole)
        rest = gpu.view(memory.data_ptr(), 10)[8:]
        del whole, part, gpu
        rest.zero_()
        self.assertEqual(memory.tolist()[6:], [60, 7, 0, 0])

    def test_parameters_that_the_cpu_or_several_ranks_have_are_not_a_gpus(self):
        self.assertIsNone(_device.gpu_of([torch.zeros(1)]))


class WorkersTest(unittest.TestCase):
    def rows(self, ranges, workers, size=1):
        said = Said([ranges])
        job = Job(said, 1)
        model = torch.nn.Linear(1, 1, bias=False)
        job.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
        data = job.dataset({"web": Rows(), "code": Rows()}, workers=workers)
        rows = []
        for step in job:
            for batch in step.batches(data, size):
                rows += batch.tolist()
                step.backward(model.weight.sum())
        return rows

    def test_samples_come_in_order_from_processes_and_draw_what_is_theirs(self):
        ranges = [(0, 2, 8), (1, 2, 4)]  # places 5 to 0, and 5 and 4
        one, two = self.rows(ranges, 2), self.rows(ranges, 3, size=3)
        self.assertEqual([row[0] for row in one], [5, 4, 3, 2, 1, 0, 5, 4])
        self.assertNotIn(os.getpid(), {row[1] for row in one + two})
        self.assertEqual([row[2:] for row in one], [row[2:] for row in two], "whoever loads them")
        self.assertEqual(len({tuple(row[2:]) for row in one}), 8)

    def test_what_a_worker_raises_or_dies_of_ends_the_step(self):
        with self.assertRaisesRegex(ValueError, "no such row") as raised:
            self.rows([(0, 0, 1)], 1)
        self.assertRegex(_ends.cause(raised.exception), r"^ValueError: no such row; at package_test.py:\d+ in "
                                                        r"__getitem__$")
        with self.assertRaisesRegex(RuntimeError, "use fewer workers"):
            self.rows([(0, 1, 2)], 1)

    def test_workers_die_with_the_rank(self):
        script = f"""
import os, signal, sys
sys.path[:0] = [{os.path.dirname(os.path.abspath(__file__))!r}]
import package_test
from bulkhead import Job, _ends
_ends.mind_forks(lambda: None)
job = Job(package_test.Said([]), 1)
job.dataset(dict(web=package_test.Rows(), code=package_test.Rows()), workers=2)
print(len(open("/proc/self/task/%d/children" % os.getpid()).read().split()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        self.assertEqual(said.returncode, -signal.SIGKILL, said.stderr)
        self.assertEqual(said.stdout, "2\n")  # at its end: the workers held it open


class Numbers(torch.utils.data.IterableDataset):
    """0, 1, 2 and so on; `read` counts what was yielded."""

    def __init__(self, size=100):
        self.size, self.read = size, 0

    def numbers(self, at):
        for number in range(at, self.size):
            self.read += 1
            yield torch.tensor([float(number)])

    def __iter__(self):
        return self.numbers(0)


class Continued(Numbers):
    """It goes on where load_state_dict() says; a pass leaves it at its end."""

    def __init__(self, size=100, first=0):
        super().__init__(size)
        self.at, self.first = 0, first

    def __iter__(self):
        for number in self.numbers(self.at):
            self.at += 1
            yield number + self.first

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Stale(Continued):
    """Its state is behind when it yields."""

    def __iter__(self):
        for number in self.numbers(self.at):
            yield number
            self.at += 1


class Buffered(Continued):
    """From the 40th on it is ahead in its state, as a shuffle buffer that is not part of it."""

    def __init__(self, ahead):
        super().__init__()
        self.ahead = ahead

    def state_dict(self):
        return {"at": self.at + self.ahead * (self.at > 40)}


class Shrinking(Numbers):
    def __iter__(self):
        self.size -= 1
        return self.numbers(0)


class StreamTest(unittest.TestCase):
    """A step of the job has 16 samples: as often a stream's state is kept."""

    def job(self, stream, steps=(), run_dir="/nowhere"):
        said = Said([[(0, begin, end)] for begin, end in steps], run_dir=run_dir)
        self.said = []
        said.log = lambda critical, line: line.startswith(b"left") or self.said.append(line.decode())
        job = Job(said, 1)
        self.weight = torch.nn.Linear(1, 1, bias=False)
        job.register(model=self.weight, optimizer=torch.optim.SGD(self.weight.parameters(), lr=1.0))
        return job, said, job.dataset({"web": stream, "code": [torch.zeros(1)]})

    def taken(self, job, data, stream):
        """(samples, how many were read for them) of each step."""
        steps = []
        for step in job:
            before = stream.read
            samples = []
            for batch in step.batches(data, 3):
                samples += batch.flatten().int().tolist()
                step.backward(self.weight(batch).mean())
            steps.append((samples, stream.read - before))
        return steps

    STEPS = [(0, 4), (56, 60), (90, 94), (52, 56), (98, 103), (254, 258), (0, 2)]
    SAMPLES = [[0, 1, 2, 3], [56, 57, 58, 59], [90, 91, 92, 93], [52, 53, 54, 55], [98, 99, 0, 1, 2],
               [54, 55, 56, 57], [0, 1]]

    def test_a_sample_is_the_one_of_its_place_in_the_pass_whatever_comes_back(self):
        job, said, data = self.job(Numbers(), self.STEPS)
        steps = self.taken(job, data, data._parts[0]._data)
        self.assertEqual([samples for samples, _ in steps], self.SAMPLES)
        self.assertEqual([read for _, read in steps], [3, 56, 34, 56, 44 + 3, 55, 2], "back is from the beginning")
        self.assertEqual(self.said, [], "all of it is near")

    def test_with_its_states_a_stream_goes_back_and_reads_little_twice(self):
        stream = Continued()
        job, said, data = self.job(stream, self.STEPS)
        steps = self.taken(job, data, stream)
        self.assertEqual([samples for samples, _ in steps], self.SAMPLES)
        self.assertEqual([read for _, read in steps], [3, 56, 34, 8, 20 + 3, 10, 2])
        self.assertEqual(sorted(data._parts[0]._marks), [16, 32, 48, 64, 80, 96])

    def test_only_the_newest_states_are_kept_and_the_first(self):
        stream = Continued(10_000)
        job, said, data = self.job(stream, [(0, 4), (5_000, 5_004), (8, 12)])
        steps = self.taken(job, data, stream)
        self.assertEqual(sorted(data._parts[0]._marks), [5_000 - 8 - 16 * n for n in range(7, -1, -1)])
        self.assertEqual(steps[2], ([8, 9, 10, 11], 12))

    def test_a_checkpoint_and_a_file_of_the_node_spare_the_beginning(self):
        with tempfile.TemporaryDirectory() as folder:
            job, said, data = self.job(Continued(), [(48, 52), (96, 104)], folder)
            self.taken(job, data, data._parts[0]._data)
            kept = job._own.bytes(9)
            # Without both the pass is read for its length.
            for run_dir, given, read in (("/nowhere", kept, 3), (folder, None, 3), ("/nowhere", None, 99 + 3)):
                stream = Continued()
                again, said, data = self.job(stream, [(380, 383)], run_dir)
                if given:
                    again._own.load(given)
                self.assertEqual(self.taken(again, data, stream), [([80, 81, 82], read)])

    def test_states_that_do_not_hold_are_not_used_any_more(self):
        for ahead in (3, 60):  # to another sample, or to the end
            job, said, data = self.job(Buffered(ahead), [(90, 94), (86, 90), (84, 86)])
            steps = self.taken(job, data, data._parts[0]._data)
            self.assertEqual([samples for samples, _ in steps], [[90, 91, 92, 93], [86, 87, 88, 89], [84, 85]])
            self.assertEqual(self.said, ["the stream of domain web does not go on where its state_dict() was taken, "
                                         "behind sample 79: no state of it is used any more; a shuffle buffer must be "
                                         "part of it"])
            self.assertEqual(data._parts[0]._marks, {})

    def test_a_stream_without_states_is_told_where_its_passes_end(self):
        with tempfile.TemporaryDirectory() as folder:
            job, said, data = self.job(Numbers(), [(96, 104)], folder)
            self.taken(job, data, data._parts[0]._data)
            stream = Numbers()
            again, said, data = self.job(stream, [(380, 383)], folder)
            self.assertEqual(self.taken(again, data, stream), [([80, 81, 82], 82)])

    def test_a_checkpoint_of_other_data_is_refused_and_a_file_left_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            job, said, data = self.job(Continued(), [(48, 52)], folder)
            self.taken(job, data, data._parts[0]._data)
            stream = Continued(first=7)
            again, said, data = self.job(stream, [(48, 50)], folder)
            with self.assertRaisesRegex(JobError, "another sample than the one that the checkpoint"):
                again._own.load(job._own.bytes(9))
            self.assertEqual(self.taken(again, data, stream), [([55, 56], 49)])

    def test_who_reads_far_says_so_once_and_counts_as_getting_on(self):
        stream = Numbers(10_000)
        job, said, data = self.job(stream, [(1_000, 1_004), (3_000, 3_004), (2_000, 2_004)])
        told = []
        said.progress = lambda rank, took: told.append(took)
        self.taken(job, data, stream)
        self.assertEqual(self.said, ["reads the stream of domain web from sample 1 on to find sample 1000: it has no "
                                     "state_dict() that holds"])
        self.assertEqual(told.count(0), 999 + 1996 + 2000)

    def test_replicas_agree_on_the_first_sample_and_not_on_a_share_of_the_stream(self):
        prints = [self.job(Continued(first=first))[0]._fingerprint() for first in (0, 0, 1)]
        self.assertEqual(prints[0], prints[1])
        self.assertNotEqual(prints[0], prints[2])
        self.assertRegex(prints[0][1].decode(), "a stream in web whose first sample is [0-9a-f]{16}, 1 samples in code")

    def test_a_stream_that_cannot_be_trained_on_is_refused_with_the_remedy(self):
        job, said, data = self.job(Numbers())
        loader = torch.utils.data.DataLoader(Numbers(), 4)
        unkept = Continued()
        unkept.state_dict = lambda: {"at": queue.Queue}
        for stream, options, words in (
                (Numbers(), {"shuffle": True}, "shuffle in the stream from a seed"),
                (Numbers(), {"workers": 2}, "load ahead within the stream"),
                (Numbers(0), {}, "the stream of domain web is empty"),
                (iter(Numbers()), {}, "a generator is read once"),
                (map(float, range(9)), {}, "a generator is read once"),
                (loader, {}, "which yields batches; give the dataset"),
                (Stale(), {}, "set the state before the yield"),
                (unkept, {}, "its state_dict\\(\\) cannot be kept")):
            with self.assertRaisesRegex(JobError, words):
                job.dataset({"web": stream, "code": [1]}, **options)
        job.dataset({"web": torch.utils.data.DataLoader(Numbers(), None), "code": [1]})

    def test_a_pass_that_is_another_is_refused(self):
        stream = Shrinking()
        job, said, data = self.job(stream, [(97, 101), (195, 199)])
        with self.assertRaisesRegex(JobError, "ended after 97 samples, and after 98 in a pass before"):
            self.taken(job, data, stream)
        seeds = iter(range(9))

        class Shuffled(Numbers):
            def __iter__(self):
                return self.numbers(next(seeds) // 2)

        job, said, data = self.job(Shuffled(), [(98, 102)])
        with self.assertRaisesRegex(JobError, "begins with another sample than before"):
            self.taken(job, data, data._parts[0]._data)


class SamplesOfRanksTest(unittest.TestCase):
    """Of a replica of two ranks, one at a time."""

    def taken(self, ranges, size, **options):
        """[values of each batch] and the figures that were told."""
        job, said, model, data = job_of([ranges], shards=2, **options)
        torch.nn.init.zeros_(model.weight)
        batches = []
        for step in job:
            for x in step.batches(data, size):
                batches.append(x.flatten().tolist())
                step.backward((model(x) + x).mean())
        return batches, said.figures[0][:2], model.weight.item()

    def test_each_sample_is_one_ranks_and_all_take_as_many_batches(self):
        five = [(0, 0, 3), (1, 0, 2)]  # values 1, 1, 1, 2, 2
        self.assertEqual(self.taken(five, 1, shard=0), ([[1], [1], [2]], (40.0, 30), -1.0))
        # Its third is its second once more, for nothing.
        self.assertEqual(self.taken(five, 1, shard=1), ([[1], [2], [2]], (30.0, 20), -0.75))
        self.assertEqual(self.taken([(1, 0, 1)], 4, shard=1), ([[2]], (0.0, 0), 0.0))

    def test_whole_samples_are_everybodys_and_told_once(self):
        four = [(0, 0, 3), (1, 0, 1)]
        for shard in (0, 1):
            batches, told, weight = self.taken(four, 2, shard=shard, whole=True)
            self.assertEqual((batches, weight), ([[1, 1], [1, 2]], -1.25))
            self.assertEqual(told, (50.0, 40) if shard == 0 else (0.0, 0))

    def test_what_several_ranks_cannot_do_is_refused(self):
        with self.assertRaises(JobError) as caught:
            job_of([], shards=2, buffers="reduced")
        self.assertIn("with several ranks in a replica", str(caught.exception))
        job, said, model, data = job_of([], shards=2)
        with self.assertRaises(JobError) as caught:
            job.dataset({"code": [1], "web": [2]}, whole=True)
        self.assertIn("with all of them, or with none", str(caught.exception))


class Ranks(unittest.TestCase):
    """The ranks of one replica as processes, without peers: the sum is their own gradient."""

    def ranks(self, body, steps, shards=2):
        """What each printed of its results, in JSON; `job` and `data` are there."""
        here = os.path.dirname(os.path.abspath(__file__))
        with tempfile.TemporaryDirectory() as folder:
            running = [subprocess.Popen([sys.executable, "-c", f"""
import json, os, signal, sys
sys.path[:0] = [{here!r}, {here!r} + "/../../examples/gpt"]
import package_test, torch
from bulkhead import _job
from torch import distributed
said = package_test.Said({steps!r}, {shard}, {shards}, {folder!r})
job = _job._attached = _job.Job(said, 1)
{body}
"""], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for shard in range(shards)]
            said = [process.communicate(timeout=120) for process in running]
        self.codes = [process.returncode for process in running]
        self.errors = [error for _, error in said]
        return [json.loads(out) if out else None for out, _ in said]


class ReplicaTest(Ranks):
    def test_a_gpt_over_two_processes_is_that_of_one(self):
        values = self.ranks("""
from model import GPT, Size, loss_of
from tensor_parallel import parallelize
job.process_group()
def gpt():
    torch.manual_seed(1)
    return GPT(Size(context=8, layers=2, heads=4, width=16))
whole, part = gpt(), parallelize(gpt(), job.shard, job.shards)
text = torch.randint(0, 256, (3, 9))
losses = []
for model in (whole, part):
    loss = loss_of(model, text[:, :-1], text[:, 1:])
    loss.backward()
    losses.append(loss.item())
def difference(a, b):
    return (a - b).abs().max().item()
n, of = job.shard, whole.blocks[1]
worst = max(difference(whole.embed.weight.grad, part.embed.weight.grad),
            difference(of.attention.project.weight.grad.view(3, 2, -1, 16)[:, n].reshape(-1, 16),
                       part.blocks[1].attention.project.weight.grad),
            difference(of.feed[2].weight.grad.chunk(2, 1)[n], part.blocks[1].feed[2].weight.grad),
            difference(of.feed[2].bias.grad, part.blocks[1].feed[2].bias.grad))
print(json.dumps([losses[0] - losses[1], worst]))
""", [])
        for loss, gradient in values:
            self.assertAlmostEqual(loss, 0, places=5, msg=self.errors)
            self.assertAlmostEqual(gradient, 0, places=5)

    def test_a_rank_whose_sibling_is_gone_says_so_and_not_that_it_failed(self):
        self.ranks("""
sys.excepthook = lambda *raised: _job._unhandled(said, lambda *_: None, *raised)
said.log = lambda critical, words: print(words.decode(), file=sys.stderr)
job.process_group()
distributed.all_reduce(torch.ones(4))
if job.shard == 1:
    os.kill(os.getpid(), signal.SIGKILL)
distributed.all_reduce(torch.ones(4))
""", [])
        self.assertEqual(self.codes, [library.EXIT_SIBLING_LOST, -signal.SIGKILL])
        self.assertRegex(self.errors[0], "a sibling in this replica was lost: RuntimeError: .*gloo")

    def test_a_group_that_the_program_made_is_refused(self):
        self.ranks("""
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
job.process_group()
""", [], shards=1)
        self.assertIn("remove init_process_group()", self.errors[0])

if fully_shard is not None:
    class FullyShardedTest(Ranks):
        SHARDED = """
from torch.distributed.fsdp import fully_shard
model = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
mesh = job.device_mesh()
fully_shard(model[0], mesh=mesh)
fully_shard(model, mesh=mesh)
job.register(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.1))
data = job.dataset({"code": [torch.tensor([2.0])] * 3, "web": [torch.tensor([1.0])] * 5})
"""

        def test_fully_sharded_it_is_the_mean_over_all_samples(self):
            steps = [[(0, 0, 3), (1, 7, 8)], [(0, 3, 6)], [(1, 0, 4)]]
            values = self.ranks(self.SHARDED + """
for step in job:
    for x in step.batches(data, 1):
        step.backward(model(x).square().mean())
print(json.dumps([p.full_tensor().flatten().tolist() for p in model.parameters()]))
""", steps)
            torch.manual_seed(5)  # the job's
            model = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            for ranges in steps:
                optimizer.zero_grad()
                for domain, begin, end in ranges:
                    for _ in range(begin, end):
                        (model(torch.tensor([[1.0 + domain]])).square().mean() / 4).backward()
                optimizer.step()
            for rank in values:
                self.assertIsNotNone(rank, self.errors)
                for ours, theirs in zip(rank, model.parameters()):
                    for a, b in zip(ours, theirs.flatten().tolist()):
                        self.assertAlmostEqual(a, b, places=5)

        def test_fully_sharded_a_joiner_goes_on_bit_for_bit(self):
            values = self.ranks(self.SHARDED + """
import ctypes
def state():
    job._state.gather()
    return ctypes.string_at(said.blocks_state, said.state_bytes)
def trained(ranges):
    said.steps.append(ranges)
    step = next(steps)
    for x in step.batches(data, 2):
        step.backward(model(x).square().mean())
def applied():
    said.steps.append([])
    next(steps)
steps = iter(job)
blank = state()
trained([(0, 0, 4)])
trained([(1, 0, 4)])
applied()
old = state()
results = [old == blank]
trained([(0, 4, 8)])
applied()
first = state()
ctypes.memmove(said.blocks_state, old, len(old))
job._state.scatter()
results.append(state() == old)
trained([(0, 4, 8)])
applied()
results.append(state() == first)
print(json.dumps(results))
os._exit(0)
""", [])
            self.assertEqual(values, [[False, True, True]] * 2, self.errors)

if lightning_fabric is not None:
    class FabricTest(Ranks):
        def script(self, precision, end=""):
            return f"""
import bulkhead.fabric
from lightning_fabric import Fabric
fabric = Fabric(accelerator="cpu", precision="{precision}", callbacks=[bulkhead.fabric.Callback(job)])
model = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.1))
job.register(model=model, optimizer=optimizer)
data = job.dataset({{"code": [torch.tensor([2.0])] * 3, "web": [torch.tensor([1.0])] * 5}})
for step in job:
    for x in step.batches(data, 1):
        out = model(x)
        step.backward(out.square().mean())
    {end}
print(json.dumps([p.flatten().tolist() for p in model.parameters()] + [str(out.dtype)]))
"""

        STEPS = [[(0, 0, 3), (1, 7, 8)], [(0, 3, 6)], [(1, 0, 4)]]

        def test_it_trains_as_without_fabric(self):
            for precision, places in [("32-true", 5), ("bf16-mixed", 1)]:
                with self.subTest(precision):
                    value, = self.ranks(self.script(precision), self.STEPS, shards=1)
                    self.assertIsNotNone(value, self.errors)
                    torch.manual_seed(5)  # the job's
                    model = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
                    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
                    for ranges in self.STEPS:
                        optimizer.zero_grad()
                        for domain, begin, end in ranges:
                            for _ in range(begin, end):
                                (model(torch.tensor([[1.0 + domain]])).square().mean() / 4).backward()
                        optimizer.step()
                    for ours, theirs in zip(value, model.parameters()):
                        for a, b in zip(ours, theirs.flatten().tolist()):
                            self.assertAlmostEqual(a, b, places=places)

        def test_what_fabric_did_not_wrap_is_registered_as_it_is(self):
            from bulkhead.fabric import _bare
            model = torch.nn.Module()
            model.module = torch.nn.Linear(1, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.optimizer = None
            self.assertEqual(_bare(model, optimizer), (model, optimizer))

        def test_an_optimizer_step_of_the_program_is_refused(self):
            self.ranks(self.script("32-true", end="optimizer.step()"), self.STEPS, shards=1)
            self.assertIn("remove optimizer.step()", self.errors[0])

        def test_processes_and_loss_scaling_of_fabric_are_refused(self):
            from bulkhead.fabric import Callback
            from lightning_fabric import Fabric
            fabric = Fabric(accelerator="cpu", devices=2)
            self.assertEqual(fabric.world_size, 2)
            with self.assertRaisesRegex(JobError, "Fabric has 2 processes; .* devices=1"):
                Callback(mock.Mock()).on_after_setup(fabric, torch.nn.Linear(1, 1))
            fabric = Fabric(accelerator="cpu", devices=1)
            fabric.strategy.precision = mock.Mock(precision="16-mixed", scaler=object())
            with self.assertRaisesRegex(JobError, "'16-mixed'.* use \"bf16-mixed\""):
                Callback(mock.Mock()).on_after_setup(fabric, torch.nn.Linear(1, 1))


class Counter:
    """A Stateful of the user's own."""

    def __init__(self, **state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


class LocalTest(unittest.TestCase):
    def draws(self):
        return torch.rand(3).tolist(), random.random(), numpy.random.rand()

    def saved(self, said, step):
        to, size = ctypes.c_void_p(), ctypes.c_uint64()
        self.assertEqual(said.program.save_local(None, step, ctypes.byref(to), ctypes.byref(size)), 0)
        return ctypes.string_at(to, size.value)

    def test_a_replica_draws_on_where_its_checkpoint_was_written(self):
        steps = [[(0, 0, 4)], [(0, 4, 8)]]
        job, said, model, data = job_of(steps)
        job.register_local(rng=bulkhead.Rng(), seen=Counter(at=1.5, rows=[torch.arange(3)], of=(None, "x")))
        drawn, kept = [], []
        for step in job:
            kept.append(self.saved(said, step.number - 1))
            drawn.append(self.draws())
            self.assertEqual(self.saved(said, step.number - 1), kept[-1], "as it was before the step")
            self.assertNotEqual(self.saved(said, step.number), kept[-1], "as it is after it")
            for x in step.batches(data, 4):
                step.backward(model(x).mean())
        again, said, model, data = job_of(steps)
        seen = Counter(at=0.0, rows=[], of=())
        again.register_local(rng=bulkhead.Rng(), seen=seen)
        again._start()
        self.assertEqual(said.program.load_local(None, kept[0], len(kept[0])), 0)
        for step, before in zip(again, drawn):
            self.assertEqual(self.draws(), before)
            for x in step.batches(data, 4):
                step.backward(model(x).mean())
        self.assertEqual((seen.state["at"], seen.state["of"]), (1.5, (None, "x")))
        self.assertTrue(torch.equal(seen.state["rows"][0], torch.arange(3)))

    def test_what_a_step_computed_anew_draws_does_not_count(self):
        job, said, model, data = job_of([[(0, 0, 4)], [(0, 4, 8)]])
        job.register_local(rng=bulkhead.Rng())
        kept = []
        for step in job:  # twice step 1
            kept.append(self.saved(said, 0))
            torch.rand(1)
            for x in step.batches(data, 4):
                step.backward(model(x).mean())
        self.assertEqual(kept[0], kept[1])

    def test_replicas_and_starts_draw_differently(self):
        firsts = set()
        for replica, incarnation in ((0, 1), (0, 2), (1, 1)):
            job, said, model, data = job_of([[(0, 0, 4)]])
            job.replica, job.incarnation = replica, incarnation
            for step in job:
                firsts.add(torch.rand(1).item())
                for x in step.batches(data, 4):
                    step.backward(model(x).mean())
        self.assertEqual(len(firsts), 3)

    def test_what_cannot_come_back_is_refused_by_name(self):
        job, said, model, data = job_of([])
        job.register_local(rng=bulkhead.Rng())
        for kept, words in ((bulkhead.Rng(), "registered before"), (7, "a int has no state_dict()"),
                            (Counter(of=queue.Queue), "cannot be kept"),
                            (Counter(on=torch.empty(2, device="meta")), "a tensor of layout"),
                            (Counter(at=numpy.zeros(2)), "expected tensors, numbers, strings")):
            with self.assertRaises(JobError) as caught:
                job.register_local(**{"rng" if isinstance(kept, bulkhead.Rng) else "kept": kept})
            self.assertIn(words, str(caught.exception))

    def test_a_checkpoint_from_elsewhere_runs_no_code(self):
        hostile = pickle.dumps({"rng": subprocess.Popen}, 4)
        with self.assertRaises(pickle.UnpicklingError) as caught:
            _local.Local().load(hostile)
        self.assertIn("subprocess.Popen is in it", str(caught.exception))


class TorchftTest(unittest.TestCase):
    """A script of its own process each time: there is one Manager in one."""

    def ends_in(self, words, body, steps=(((0, 0, 4),), ((0, 4, 8),))):
        script = """
import sys; sys.path[:0] = {path!r}
import torch, package_test
from bulkhead import _job, torchft
said = package_test.Said({steps!r})
_job._attached = _job.Job(said, 1)
said.describe = None
_job._attached.domains = ["data"]
model = torch.nn.Linear(1, 1, bias=False)
sampler = torchft.DistributedSampler([torch.tensor([1.0])] * 9)
optim = torch.optim.SGD(model.parameters(), lr=1.0)
def manager(state_dict=None, **options):
    return torchft.Manager(torchft.ProcessGroupGloo(), None, state_dict, 1, **options)
def train(m, batch=4, **options):
    net = torchft.DistributedDataParallel(m, model)
    optimizer = torchft.Optimizer(m, optim)
    for x in torch.utils.data.DataLoader(sampler.dataset, batch, sampler=sampler, **options):
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()
        print("step", m.current_step(), "at", round(model.weight.item() - before, 5), flush=True)
before = model.weight.item()
{body}
""".format(path=[os.path.dirname(os.path.abspath(__file__))], steps=list(map(list, steps)), body=body)
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        self.assertIn(words, said.stdout + said.stderr)
        return said.returncode

    def test_a_step_is_the_mean_and_the_jobs_end_is_the_scripts(self):
        self.assertEqual(self.ends_in("step 0 at -1.0\n", "train(manager())"), 0)

    def test_batches_committed_are_the_sum_over_steps(self):
        job, said, model, data = job_of([[(0, 0, 4)]] * 4)
        said.committed = [16, 8, 12]
        batches = []
        for step in job:
            batches.append(torchft_manager.batches_committed(types.SimpleNamespace(_job=job)))
            for x in step.batches(data, 4):
                step.backward(model(x).mean())
        self.assertEqual(batches, [0, 4, 6, 9])

    def test_what_cannot_be_is_refused_with_the_remedy(self):
        self.ends_in("give the DataLoader that batch_size", "train(manager(), 3)")
        self.ends_in("give the DataLoader num_workers=0", "train(manager(), num_workers=1)")
        self.ends_in("state_dict().ema is neither the model's",
                     "train(manager(lambda: {'model': model.state_dict(), 'ema': torch.ones(2)}))")
        self.ends_in("a second Manager", "manager(); manager()")
        self.ends_in("world_size=2", "manager(world_size=2)")
        self.ends_in("Manager.allreduce: not in bulkhead.torchft", "manager().allreduce(None)")


class EndsTest(unittest.TestCase):
    def test_without_torch_doctor_says_so_and_the_package_what_is_missing(self):
        def run(body):
            said = subprocess.run([sys.executable, "-c", "import sys; sys.modules['torch'] = None; " + body],
                                  capture_output=True, text=True, timeout=60,
                                  env={k: v for k, v in os.environ.items() if k != "BULKHEAD_JOB"})
            return said.stdout + said.stderr

        self.assertRegex(run("import runpy; sys.argv[1:] = ['doctor']; "
                             "runpy.run_module('bulkhead', run_name='__main__')"), r"MISSING +torch: .*install")
        self.assertIn("ModuleNotFoundError", run("import bulkhead; bulkhead.attach()"))

    def test_doctor_names_a_program_of_another_version(self):
        from bulkhead.__main__ import _program
        for said, good in ((library.Library().version().decode(), True), ("0.0.1", False)):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "bulkheadctl")
                with open(path, "w") as file:
                    file.write(f"#!/bin/sh\necho bulkheadctl {said}\n")
                os.chmod(path, 0o755)
                with mock.patch.dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"):
                    is_good, words = _program()
                self.assertEqual(is_good, good, words)
                self.assertIn(path, words)

    def test_a_child_of_a_rank_that_is_gone_already_ends(self):
        script = """
import os, signal, time
from bulkhead import _ends
end, held = os.pipe()
def waits_for_the_rank():
    os.close(held)
    os.read(end, 1)
os.register_at_fork(after_in_child=waits_for_the_rank)
_ends.mind_forks(lambda: None)
rank = os.getpid()
if os.fork() == 0:
    while os.getppid() == rank:  # its pipe was closed first
        time.sleep(0.001)
    signal.sigtimedwait([signal.SIGKILL], 0.5)  # which the kernel has sent
    print("it lives on", flush=True)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        self.assertEqual((said.returncode, said.stdout), (-signal.SIGKILL, ""), said.stderr)

    def test_a_cause_is_one_line_with_the_programs_own_places(self):
        def inner():
            raise MemoryError("no room\nfor it")

        try:
            inner()
        except MemoryError as error:
            line = _ends.cause(error)
        self.assertRegex(line, r"^out of memory: MemoryError: no room for it; at package_test.py:\d+ in "
                               r"test_a_cause\w*, package_test.py:\d+ in inner$")

    def test_who_gets_on_is_never_stuck_and_who_stands_still_is_told_where(self):
        told = queue.Queue()
        watch = _ends.Watch(0.25, 2, lambda seconds, where: told.put((seconds, where)))
        with watch:
            for _ in range(6):
                self.assertFalse(threading.Event().wait(0.1))
                watch.moved()
        self.assertTrue(told.empty())
        with watch:  # it lasted 0.6 s before: twice that is allowed, and said a little sooner
            seconds, where = told.get(timeout=20)
        self.assertGreater(seconds, 0.9)
        self.assertIn("queue.py", where)

    def test_a_fork_dies_with_the_rank_and_its_sigterm_is_its_own(self):
        script = """
import os, signal, sys, time
from bulkhead import _ends
signal.signal(signal.SIGTERM, lambda *_: print("the rank's", flush=True))
_ends.mind_forks(lambda: print("forked", flush=True))
for _ in range(2):
    child = os.fork()
    if child == 0:
        time.sleep(100)
    time.sleep(0.2)
    if _ == 0:
        os.kill(child, signal.SIGTERM)
        print(os.waitpid(child, 0)[1], flush=True)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        self.assertEqual(said.returncode, -signal.SIGKILL, said.stderr)
        lines = said.stdout.split()  # at its end: the children held it open
        self.assertEqual(lines[:3], ["forked", str(int(signal.SIGTERM)), "forked"])
        self.assertFalse(os.path.exists(f"/proc/{lines[3]}/fd/1"))


if __name__ == "__main__":
    unittest.main()
