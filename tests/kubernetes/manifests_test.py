#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: manifests_test.py SOURCES BIN: resources/kubernetes against the programs in BIN."""
import pathlib
import re
import subprocess
import sys
import unittest

import yaml

SOURCES, BIN = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
BASE = SOURCES / "resources/kubernetes/base"


def documents(folder: pathlib.Path) -> list[dict]:
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [one for name in names for one in yaml.safe_load_all((folder / name).read_text())]


def of_kind(kind: str) -> list[dict]:
    return [one for one in documents(BASE) if one["kind"] == kind]


def workloads() -> list[tuple[str, dict]]:
    """Name and pod of each thing that runs."""
    return [(one["metadata"]["name"], one["spec"]["template"]["spec"])
            for one in of_kind("StatefulSet") + of_kind("Job")]


def containers() -> list[tuple[dict, dict]]:
    """Pod and container."""
    return [(pod, container) for _, pod in workloads()
            for container in pod.get("initContainers", []) + pod["containers"]]


def options_of(program: str, *verb: str) -> set[str]:
    text = subprocess.run([BIN / program, *verb, "--help"], check=True, stdout=subprocess.PIPE,
                          text=True).stdout
    return set(re.findall(r"(?<!\w)--[a-z][a-z-]*", text))


def words(container: dict) -> list[str]:
    """The program's words; of a shell's script those of its first command."""
    command = container["command"]
    if command[0] == "/bin/bash":
        command = command[2].replace("\\\n", " ").split("&\n")[0].split()
    return command


def configs() -> dict[str, dict[str, str]]:
    """Text of each file of each generated ConfigMap."""
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    return {one["name"]: {name: (BASE / name).read_text() for name in one["files"]}
            for one in kustomization["configMapGenerator"]}


def keys(toml: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z-]+) = (.*?)(?:\s+#.*)?$", toml, re.MULTILINE))


class Manifests(unittest.TestCase):
    def test_every_file_is_listed(self):
        for folder in (BASE, BASE.parent / "gpu"):
            text = (folder / "kustomization.yaml").read_text()
            for file in folder.iterdir():
                if file.name != "kustomization.yaml":
                    self.assertIn(file.name, text)

    def test_every_option_of_a_command_is_one_of_the_program(self):
        seen = 0
        for _, container in containers():
            command = words(container)
            program = command[0].rsplit("/", 1)[-1]
            if program not in ("bulkheadd", "bulkheadctl"):
                continue
            verbs = [word for word in command[1:] if re.fullmatch("[a-z]+", word)][:1]
            known = options_of(program) | (options_of(program, *verbs) if verbs else set())
            for word in command[1:]:
                if word.startswith("--"):
                    seen += 1
                    self.assertIn(word.split("=")[0], known)
        self.assertGreater(seen, 8)

    def test_probes_ask_what_the_command_line_can_say(self):
        for probe in ("startupProbe", "livenessProbe"):
            command = self.controller()[1][probe]["exec"]["command"]
            self.assertEqual(command[0], "/usr/bin/bulkheadctl")
            ran = subprocess.run([BIN / "bulkheadctl", "--target", "unix:/nowhere", *command[3:]],
                                 stderr=subprocess.DEVNULL, check=False)
            self.assertEqual(ran.returncode, 3, "no daemon answers")

    def test_every_option_of_a_config_is_one_of_the_daemon(self):
        known = options_of("bulkheadd")
        for files in configs().values():
            for text in files.values():
                self.assertTrue(keys(text))
                for key in keys(text):
                    self.assertIn("--" + key, known)

    def test_programs_are_those_of_the_image(self):
        packages = (SOURCES / "cmake/BulkheadPackages.cmake").read_text()
        image = (SOURCES / "resources/container/Containerfile").read_text()
        for _, container in containers():
            program = words(container)[0].rsplit("/", 1)[-1]
            component = re.search(rf"bulkhead_installs\((\w+) [^)]*\b{program}\b", packages)
            if program.startswith("bulkhead"):
                self.assertIn(f"bulkhead-{component.group(1)}_", image)
                self.assertTrue((BIN / program).exists())
            else:
                self.assertTrue(pathlib.Path(words(container)[0]).exists())

    def test_mounts_ports_and_references_are_declared(self):
        accounts = {one["metadata"]["name"] for one in of_kind("ServiceAccount")}
        claims = {one["metadata"]["name"] for one in of_kind("PersistentVolumeClaim")}
        for name, pod in workloads():
            self.assertIn(pod["serviceAccountName"], accounts)
            self.assertFalse(pod["automountServiceAccountToken"])
            volumes = {one["name"] for one in pod["volumes"]}
            templates = [one for one in of_kind("StatefulSet") if one["metadata"]["name"] == name]
            for one in templates:
                volumes |= {t["metadata"]["name"] for t in one["spec"]["volumeClaimTemplates"]}
            used = {mount["name"] for container in pod.get("initContainers", []) + pod["containers"]
                    for mount in container["volumeMounts"]}
            self.assertEqual(used, volumes)
            for volume in pod["volumes"]:
                if "persistentVolumeClaim" in volume:
                    self.assertIn(volume["persistentVolumeClaim"]["claimName"], claims)
                if "configMap" in volume:
                    self.assertIn(volume["configMap"]["name"], configs())

    def test_the_ports_of_services_and_policies_are_listened_on(self):
        options = keys(configs()["controller"]["controller.toml"])
        control = int(re.search(r":(\d+)", options["control-listen"]).group(1))
        ports = {port["name"]: port["containerPort"] for _, container in containers()
                 for port in container.get("ports", [])}
        self.assertEqual(ports["control"], control)
        for service in of_kind("Service"):
            for port in service["spec"]["ports"]:
                self.assertEqual(ports[port["targetPort"]], port["port"])
        agent = keys(configs()["agent"]["agent.toml"])
        self.assertEqual(agent["controller"], f'"{of_kind("Service")[0]["metadata"]["name"]}:{control}"')
        allowed = {port["port"] for one in of_kind("NetworkPolicy")
                   for rule in one["spec"].get("ingress", []) for port in rule.get("ports", [])}
        self.assertEqual(allowed, set(ports.values()))

    def test_policies_choose_pods_that_are_there(self):
        labels = {one["spec"]["template"]["metadata"]["labels"]["app"]
                  for one in of_kind("StatefulSet") + of_kind("Job")}
        text = (BASE / "network.yaml").read_text() + (BASE / "controller.yaml").read_text()
        self.assertEqual(set(re.findall(r"app: (\S+)", text)), labels)

    def test_a_key_is_a_file_that_its_user_alone_reads(self):
        _, pod = next(one for one in workloads() if one[0] == "agents")
        key = keys(configs()["agent"]["agent.toml"])["agent-key"].strip('"')
        init, agent = pod["initContainers"][0], pod["containers"][0]
        self.assertEqual(init["command"][-1], key)
        self.assertIn("--mode=0600", init["command"])
        self.assertNotIn("keys", [mount["name"] for mount in agent["volumeMounts"]])

    def test_nothing_runs_as_root_or_may_gain_rights(self):
        for pod, container in containers():
            self.assertTrue(pod["securityContext"]["runAsNonRoot"])
            self.assertEqual(container["securityContext"], {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]}})

    def controller(self) -> tuple[dict, dict]:
        return next(one for one in containers() if one[1]["name"] == "controller")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
