"""Manifests of `deploy/kubernetes` against Kubernetes' schemas, the command line, the settings and the images."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from rechannel.conf.loader import LoadResult, read_settings
from rechannel.daemon.cli.config import examine
from rechannel.daemon.cli.main import main
from rechannel.daemon.doctor.key_files import check_keys
from rechannel.daemon.view.http import build_app
from rechannel.wire import distribution
from rechannel.wire.messages import NODE_ATTRIBUTE

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "kubernetes"
CONTAINERFILE = (ROOT / "Containerfile").read_text()
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
FILES = sorted(path for path in DEPLOY.rglob("*.yaml") if path.name != "kustomization.yaml")
VERSIONS = ("1.29", "1.37")  # the oldest with sidecars, the newest with a schema
MOUNT = "/etc/rechannel"
SPARK = "spark"  # the namespace of drivers and executors

Document = dict[str, Any]


def documents(path: Path) -> list[Document]:
    return list(yaml.safe_load_all(path.read_text()))


(KUSTOMIZATION,) = documents(DEPLOY / "kustomization.yaml")
MANIFESTS = [document for path in FILES for document in documents(path)]
PODS: dict[str, Document] = {}  # by name of the deployment or file
for _file in FILES:
    for _document in documents(_file):
        if _document["kind"] == "Pod":
            PODS[_file.stem] = _document | {"namespace": SPARK}
        elif "template" in _document.get("spec", {}):
            _namespace = _document["metadata"]["namespace"]
            PODS[_document["metadata"]["name"]] = _document["spec"]["template"] | {"namespace": _namespace}
CONTAINERS = {
    (name, container["name"]): container
    for name, pod in PODS.items()
    for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
}
# Spark adds the images of the others.
OURS = {key: container for key, container in CONTAINERS.items() if "image" in container}


def of_kind(kind: str) -> list[Document]:
    return [document for document in MANIFESTS if document["kind"] == kind]


def generated(kind: str, namespace: str) -> dict[str, dict[str, str]]:
    """Return what kustomize makes of a kind in a namespace: name -> name of each file in it -> its source."""
    return {
        item["name"]: {entry.partition("=")[0].split("/")[-1]: entry.rpartition("=")[2] for entry in item["files"]}
        for item in KUSTOMIZATION[f"{kind}Generator"]
        if item["namespace"] == namespace
    }


def created() -> dict[str, dict[str, str]]:
    """Return the secrets that the page has made with kubectl in the namespace of Spark, like `generated`."""
    page = re.sub(r"\\\n *", "", PAGE)
    commands = re.findall(r"kubectl create secret generic (\S+) --namespace spark((?: --from-file=\S+)+)", page)
    return {
        name: {
            entry.partition("=")[0].split("/")[-1]: entry.rpartition("=")[2]
            for entry in re.findall(r"--from-file=(\S+)", files)
        }
        for name, files in commands
    }


def mounted_files(pod: Document, volume: Document) -> dict[str, str]:
    """Return the files of a volume of a pod: name -> source."""
    files: dict[str, str] = {}
    for source in volume.get("projected", {}).get("sources", [volume]):
        if "configMap" in source:
            files |= generated("configMap", pod["namespace"])[source["configMap"]["name"]]
        elif "name" in source["secret"]:
            files |= generated("secret", pod["namespace"])[source["secret"]["name"]]
        else:
            files |= created()[source["secret"]["secretName"]]
    return files


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_manifest_is_valid_and_has_no_field_that_kubernetes_does_not_know(path: Path, version: str) -> None:
    for document in documents(path):
        kubernetes_validate.validate(document, version, strict=True)


def test_a_manifest_with_an_unknown_field_is_refused() -> None:
    (account, *_) = documents(DEPLOY / "agent.yaml")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(account | {"automountServiceAcountToken": False}, VERSIONS[-1], strict=True)


def test_kustomize_takes_every_manifest_and_files_that_are_there_or_are_made_by_the_administrator() -> None:
    assert sorted(KUSTOMIZATION["resources"]) == [path.name for path in FILES if path.parent == DEPLOY]
    for kind in ("configMap", "secret"):
        for item in KUSTOMIZATION[f"{kind}Generator"]:
            for source in generated(kind, item["namespace"])[item["name"]].values():
                assert (DEPLOY / source).is_file() or kind == "secret", source
                assert source.startswith("keys/") or source.endswith(".password") or kind == "configMap"
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/deploy/kubernetes/keys/", "/deploy/kubernetes/*.password"} <= set(ignored)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is missing: kustomize is NOT run")
def test_kustomize_puts_the_names_that_it_makes_into_the_volumes(tmp_path: Path) -> None:
    copy = shutil.copytree(DEPLOY, tmp_path / "kubernetes", ignore=shutil.ignore_patterns("keys", "*.password"))
    for item in KUSTOMIZATION["secretGenerator"]:
        for source in item["files"]:
            (copy / source).parent.mkdir(exist_ok=True)
            (copy / source).write_text("placeholder")
    done = subprocess.run(["kubectl", "kustomize", str(copy)], capture_output=True, text=True, check=True)
    built = list(yaml.safe_load_all(done.stdout))
    made = {(item["kind"], item["metadata"]["name"]) for item in built}
    references = re.findall(r"(configMap|secret):\n +name: (\S+)", done.stdout)
    assert len(references) == 4
    for kind, name in references:
        assert (kind[0].upper() + kind[1:], name) in made
    for document in built:
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("path", sorted((DEPLOY / "spark").glob("*.yaml")), ids=lambda path: path.stem)
def test_spark_reads_a_pod_template_as_kubernetes_does(path: Path) -> None:
    # Spark 3.5's client reads YAML 1.2, where 0400 is four hundred (fabric8io/kubernetes-client#6110).
    assert re.findall(r": *(0\d+)\b", path.read_text()) == []


def test_the_page_names_every_file_with_an_image_to_fill_in() -> None:
    step = PAGE[PAGE.index("1. **Images.**") : PAGE.index("2. **Keys")]
    files = [path for path in DEPLOY.rglob("*.yaml") if "registry.example" in path.read_text()]
    assert len(files) == 2
    assert [str(path.relative_to(DEPLOY)) for path in files if f"`{path.relative_to(DEPLOY)}`" not in step] == []


@pytest.mark.parametrize("name", PODS)
def test_every_volume_is_there_and_mounted(name: str) -> None:
    volumes = {volume["name"] for volume in PODS[name]["spec"].get("volumes", [])}
    mounts = [mount for (pod, _), it in CONTAINERS.items() if pod == name for mount in it.get("volumeMounts", [])]
    assert {mount["name"] for mount in mounts} == volumes
    assert all(mount["readOnly"] and "subPath" not in mount for mount in mounts), "a mounted file is renewed only whole"


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the manifests' files, with the secrets that the page's own commands make."""
    directory = shutil.copytree(DEPLOY, tmp_path / "kubernetes", ignore=shutil.ignore_patterns("keys", "*.password"))
    monkeypatch.chdir(directory)
    users = []
    for command in re.findall(r"^ +rechannel ((?:config keys keys|acl add-role \w+ --pass).*)$", PAGE, re.MULTILINE):
        result = CliRunner().invoke(main, command.split())
        assert result.exit_code == 0, result.output
        users += re.findall(r"user (\S+) reset", result.output)
    (directory / "users").write_text("\n".join(users))
    return directory


def configured(name: str, directory: Path, secrets: Path) -> LoadResult:
    """Read the configuration of a pod's container of ours, its files mounted at ``directory``."""
    (container,) = [container for (pod, _), container in OURS.items() if pod == name]
    (mount,) = container["volumeMounts"]
    assert mount["mountPath"] == MOUNT
    (volume,) = [volume for volume in PODS[name]["spec"]["volumes"] if volume["name"] == mount["name"]]
    directory.mkdir()
    mode = (volume.get("projected") or volume["secret"])["defaultMode"]
    for file, source in mounted_files(PODS[name], volume).items():
        shutil.copyfile(secrets / source, directory / file)
        (directory / file).chmod(mode)
    environment = {item["name"]: "worker-1" for item in container.get("env", [])}
    return read_settings(directory / "rechannel.toml", environment)


@pytest.mark.parametrize("name", sorted({pod for pod, _ in OURS}))
def test_the_configuration_is_accepted_with_the_files_that_are_mounted(
    name: str, tmp_path: Path, secrets: Path
) -> None:
    loaded = configured(name, tmp_path / "mounted", secrets)
    mistakes, notes = examine(loaded, of_node=True)
    assert mistakes == []
    of_controller = name == "rechannel-controller"
    assert [note.split()[0] for note in notes] == (["controller.listen"] if of_controller else []), notes
    assert loaded.settings.redis.password_file
    assert loaded.settings.redis.username in (secrets / "users").read_text().splitlines()
    if of_controller:
        assert loaded.settings.signing.private_key_file
        assert check_keys(loaded.settings) == ([], [])
    assert loaded.settings.agent.node == ("worker-1" if name == "rechannel-agent" else "")


def test_the_configuration_of_drivers_is_accepted_where_spark_mounts_it(tmp_path: Path, secrets: Path) -> None:
    assert f"spark.kubernetes.driver.secrets.rechannel-link={MOUNT} " in PAGE
    (tmp_path / "mounted").mkdir()
    for file, source in created()["rechannel-link"].items():
        shutil.copyfile(secrets / source, tmp_path / "mounted" / file)
    loaded = read_settings(tmp_path / "mounted" / "rechannel.toml", {})
    assert examine(loaded, of_node=True)[0] == []
    assert check_keys(loaded.settings)[0] == []
    assert loaded.settings.redis.username in (secrets / "users").read_text().splitlines()
    assert not loaded.settings.signing.private_key_file


@pytest.mark.parametrize("key", OURS, ids=str)
def test_the_command_is_one_of_the_image(key: tuple[str, str]) -> None:
    image, (verb, *options) = OURS[key]["image"], OURS[key]["args"]
    with main.make_context("rechannel", [verb, *options]) as context:
        command = main.get_command(context, verb)
        assert command is not None
        command.make_context(verb, options, parent=context)
    stages = re.findall(r"^FROM \S+ AS (\S+)$", CONTAINERFILE, re.MULTILINE)
    assert 'ENTRYPOINT ["rechannel"]' in CONTAINERFILE
    target = dict(re.findall(r"--target (\S+) --tag (\S+) ", PAGE))
    image = image.rpartition("/")[2].partition(":")[0]
    stage = next(stage for stage, tag in target.items() if tag == image)
    assert stage in stages
    assert image in {item["name"] for item in KUSTOMIZATION["images"]}
    assert stage == "rechannel" or verb in distribution.LIGHT_COMMANDS


def test_users_are_those_of_the_image_and_of_spark() -> None:
    user = re.search(r"^USER (\d+):(\d+)$", CONTAINERFILE, re.MULTILINE)
    assert user is not None
    of = {name: pod["spec"]["securityContext"] for name, pod in PODS.items()}
    users = {name: (context["runAsUser"], context["runAsGroup"]) for name, context in of.items()}
    assert users["rechannel-controller"] == (int(user[1]), int(user[2]))
    assert {ids for name, ids in users.items() if name != "rechannel-controller"} == {(185, 185)}
    assert {of[pod]["fsGroup"] == users[pod][1] for pod, _ in OURS} == {True}, "the mounted files belong to root"


def test_agents_and_executors_go_by_the_same_name_of_the_node() -> None:
    variables = {
        key: {item["name"]: item["valueFrom"] for item in container.get("env", [])}
        for key, container in CONTAINERS.items()
    }
    node = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    of_executor = {f"SPARK_EXECUTOR_ATTRIBUTE_{NODE_ATTRIBUTE}": node}
    assert variables == {
        ("rechannel-agent", "agent"): {"RECHANNEL_AGENT__NODE": node},
        ("rechannel-controller", "controller"): {},
        ("executor", "spark-kubernetes-executor"): of_executor,
        ("executor-with-agent", "rechannel-agent"): {},
        ("executor-with-agent", "spark-kubernetes-executor"): of_executor,
    }
    sharing = {"hostPID", "shareProcessNamespace"}
    sees = {name for name, pod in PODS.items() if any(pod["spec"].get(field) for field in sharing)}
    assert sees == {pod for pod, name in OURS if "agent" in name}


@pytest.mark.parametrize("key", OURS, ids=str)
def test_a_container_has_no_right_that_it_does_not_need(key: tuple[str, str]) -> None:
    container, pod = OURS[key], PODS[key[0]]["spec"]
    context = pod["securityContext"] | container["securityContext"]
    assert context["runAsNonRoot"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {"cpu", "memory"} == container["resources"]["requests"].keys()
    assert "memory" in container["resources"]["limits"]


def test_no_part_has_a_token_of_the_api_server() -> None:
    accounts = {(it["metadata"]["namespace"], it["metadata"]["name"]): it for it in of_kind("ServiceAccount")}
    assert not any(account["automountServiceAccountToken"] for account in accounts.values())
    for workload in (*of_kind("Deployment"), *of_kind("DaemonSet")):
        spec = workload["spec"]["template"]["spec"]
        assert (workload["metadata"]["namespace"], spec["serviceAccountName"]) in accounts
        assert spec["automountServiceAccountToken"] is False


def test_only_the_namespace_of_pods_that_see_the_host_is_privileged() -> None:
    levels = {
        item["metadata"]["name"]: item["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for item in of_kind("Namespace")
    }
    assert levels == {
        pod["namespace"]: "privileged" if pod["spec"].get("hostPID") else "restricted"
        for pod in PODS.values()
        if pod["namespace"] != SPARK
    }


def test_probes_ask_for_what_the_controller_answers(tmp_path: Path, secrets: Path) -> None:
    (controller,) = [container for key, container in OURS.items() if key[0] == "rechannel-controller"]
    app = build_app(lambda: None, None, None, silence=1.0, local=False)  # type: ignore[arg-type,return-value]
    paths = {route.path for route in app.routes}  # type: ignore[attr-defined]
    ports = {port["name"]: port["containerPort"] for port in controller["ports"]}
    for probe in ("livenessProbe", "readinessProbe"):
        assert controller[probe]["httpGet"]["path"] in paths
        assert controller[probe]["httpGet"]["port"] in ports
    listen = configured("rechannel-controller", tmp_path / "mounted", secrets).settings.controller.listen
    (service,) = of_kind("Service")
    assert f"0.0.0.0:{ports['http']}" == listen
    assert [(port["port"], port["targetPort"]) for port in service["spec"]["ports"]] == [(ports["http"], "http")]


def test_two_controllers_are_on_two_nodes_and_one_stays() -> None:
    (deployment,), (budget,), (service,) = map(of_kind, ("Deployment", "PodDisruptionBudget", "Service"))
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    ((term,),) = [
        rules["requiredDuringSchedulingIgnoredDuringExecution"]
        for rules in deployment["spec"]["template"]["spec"]["affinity"].values()
    ]
    selectors = (deployment["spec"]["selector"], budget["spec"]["selector"], term["labelSelector"])
    assert [selector["matchLabels"] for selector in selectors] == [labels] * 3
    assert service["spec"]["selector"] == labels
    assert (deployment["spec"]["replicas"], budget["spec"]["minAvailable"]) == (2, 1)
    assert budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow", "without Redis none is ready"
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_network_policies_are_of_the_ports_in_use_and_of_pods_with_these_labels(tmp_path: Path, secrets: Path) -> None:
    pod_labels = {
        (pod["namespace"], *pod["metadata"]["labels"].items())
        for pod in PODS.values()
        if "labels" in pod.get("metadata", {})
    }
    elsewhere = {
        ("rechannel", ("app.kubernetes.io/name", "redis")),
        ("monitoring", ("app.kubernetes.io/name", "prometheus")),
        (SPARK, ("spark-role", "driver")),
        (SPARK, ("spark-role", "executor")),
    }
    ports = {"redis": 6379, "rechannel-controller": 9418}
    for policy in of_kind("NetworkPolicy"):
        namespace, spec = policy["metadata"]["namespace"], policy["spec"]
        assert spec["policyTypes"] == ["Ingress"]
        if not spec["podSelector"]:
            assert "ingress" not in spec, "nothing is let in"
            continue
        target = spec["podSelector"]["matchLabels"]
        assert (namespace, *target.items()) in pod_labels | elsewhere
        (rule,) = spec["ingress"]
        assert [port["port"] for port in rule["ports"]] == [ports[target["app.kubernetes.io/name"]]]
        for peer in rule["from"]:
            labels = peer.get("namespaceSelector", {}).get("matchLabels", {})
            place = labels.get("kubernetes.io/metadata.name", namespace)
            assert (place, *peer["podSelector"]["matchLabels"].items()) in pod_labels | elsewhere
    for name in sorted({pod for pod, _ in OURS}):
        url = configured(name, tmp_path / name, secrets).settings.redis.url
        assert url == f"redis://redis.rechannel.svc:{ports['redis']}/0", name
