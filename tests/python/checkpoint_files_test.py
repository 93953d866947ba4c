# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a PyTorch job as files that torch and other readers read, and the way back.

usage: checkpoint_files_test.py BIN-FOLDER. The same file is the job's program.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 5)
        self.norm = torch.nn.LayerNorm(5)
        self.second = torch.nn.Linear(5, 3)
        self.head = torch.nn.Linear(3, 5)
        self.head.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.register_buffer("count", torch.tensor([7, 8]))
        self.register_buffer("scale", torch.ones(3, dtype=torch.bfloat16))

    def forward(self, x):
        return self.head(self.second(torch.relu(self.norm(self.first(x)))))


def made():
    torch.manual_seed(3)
    model = Net()
    groups = [{"params": [model.first.weight, model.first.bias]},
              {"params": [p for n, p in model.named_parameters() if not n.startswith("first.")], "lr": 0.02}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, amsgrad=True)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)


def train():
    import bulkhead
    job = bulkhead.attach()
    model, optimizer, scheduler = made()
    job.register(model=model, optimizer=optimizer, scheduler=scheduler)
    torch.manual_seed(4)
    data = job.dataset(torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randn(64, 5)))
    for step in job:
        for x, y in step.batches(data, size=4):
            step.backward(torch.nn.functional.mse_loss(model(x), y))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict()}, sys.argv[2])


class CheckpointFilesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.up("run.db", 5, "end.pt")
        cls.end = torch.load(cls.path("end.pt"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    @classmethod
    def ctl(cls, *words):
        done = subprocess.run([os.path.join(BIN, "bulkheadctl"), "--json", *words], cwd=cls.folder.name,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200)
        assert done.returncode == 0, done.stdout
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    @classmethod
    def up(cls, db, steps, end, *more):
        cls.ctl("up", "--replicas", "1", "--steps", str(steps), "--db", db, *more,
                "--set", "policies.parity_every_steps=1",  # how often it pays depends on the machine
                "--set", f"env=[\"PYTHONPATH={os.environ['PYTHONPATH']}\"]", "--",
                sys.executable, os.path.abspath(__file__), "train", end)

    def export(self, name, to, *more):
        self.ctl("checkpoint", "export", "-f", "run.db", "--to", to, "-o", name, *more)
        return self.path(name)

    def test_a_model_loads_it_by_the_names_of_its_state_dict(self):
        saved = torch.load(self.export("model.pt", "torch"), weights_only=True)
        self.assertEqual(set(saved), set(self.end["model"]))
        for name, value in self.end["model"].items():
            self.assertEqual(saved[name].dtype, value.dtype, name)
            self.assertTrue(torch.equal(saved[name], value), name)
        model, _, _ = made()
        model.load_state_dict(saved)
        self.assertTrue(torch.equal(model.head.weight, self.end["model"]["first.weight"]))
        self.assertFalse(torch.equal(made()[0].first.weight, model.first.weight), "it has learned")

    def test_optimizer_and_scheduler_load_theirs(self):
        # weights_only of torch 1 knows no floats, and so reads no optimizer's state, whoever saved it.
        newer = not torch.__version__.startswith("1.")
        saved = torch.load(self.export("all.pt", "torch", "--optimizer"), weights_only=newer)
        model, optimizer, scheduler = made()
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        is_now, was = optimizer.state_dict(), self.end["optimizer"]
        self.assertEqual(list(is_now["state"]), list(was["state"]))
        for number, kept in was["state"].items():
            self.assertEqual(set(is_now["state"][number]), set(kept))
            for key, value in kept.items():
                self.assertTrue(torch.equal(is_now["state"][number][key], value), (number, key))
        for mine, theirs in zip(is_now["param_groups"], was["param_groups"]):
            self.assertEqual({**mine, "betas": tuple(mine["betas"])}, theirs)
        self.assertEqual(scheduler.last_epoch, self.end["scheduler"]["last_epoch"])

    def test_a_file_of_torch_comes_back_by_way_of_safetensors(self):
        source = self.export("back.pt", "torch")
        subprocess.run([sys.executable, "-m", "bulkhead", "safetensors", source, self.path("back.safetensors")],
                       check=True, stdout=subprocess.DEVNULL, timeout=100)
        imported = self.ctl("checkpoint", "import", "back.safetensors", "--like", "latest", "-f", "run.db")[-1]
        exported = self.ctl("checkpoint", "export", "-f", "run.db", "--to", "torch", "-o", "y.pt")[-1]
        with open(self.path(exported["checkpoint"])) as file:
            was = json.load(file)
        self.assertEqual(imported["state_hashes"], [one["state_hash"] for one in was["files"]])

    def test_another_reader_finds_names_dtypes_shapes_and_values(self):
        with open(self.export("model.safetensors", "safetensors"), "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            data = file.read()
        said = header.pop("__metadata__")
        self.assertEqual((said["bulkhead.step"], said["bulkhead.model"]), ("5", "Net"))
        self.assertEqual(set(header), set(self.end["model"]))
        dtypes = {"F32": torch.float32, "I64": torch.int64, "BF16": torch.bfloat16}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            read = torch.frombuffer(bytearray(data[begin:end]), dtype=dtypes[entry["dtype"]])
            self.assertTrue(torch.equal(read.view(entry["shape"]), self.end["model"][name]), name)

    def test_a_job_goes_on_from_what_was_imported_bit_for_bit(self):
        self.export("all.safetensors", "safetensors", "--optimizer")
        imported = self.ctl("checkpoint", "import", "all.safetensors")[-1]
        manifest = imported["manifest"]
        self.up("moved.db", 8, "moved.pt", "--resume", manifest)
        self.up("stayed.db", 8, "stayed.pt", "--resume", self.ctl(
            "checkpoint", "export", "-f", "run.db", "--to", "torch", "-o", "x.pt")[-1]["checkpoint"])
        hashes = [[row["hashes"] for row in self.ctl("ledger", "-f", db)] for db in ("moved.db", "stayed.db")]
        self.assertEqual(hashes[0], hashes[1])
        self.assertEqual(hashes[0][0], ",".join(imported["state_hashes"]))
        moved, stayed = (torch.load(self.path(name)) for name in ("moved.pt", "stayed.pt"))
        self.assertTrue(torch.equal(moved["model"]["first.weight"], stayed["model"]["first.weight"]))
        self.assertFalse(torch.equal(moved["model"]["first.weight"], self.end["model"]["first.weight"]))


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train()
    else:
        BIN = os.path.abspath(sys.argv.pop(1))
        unittest.main()
