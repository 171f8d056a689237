"""TLS to a real Redis: what is trusted is used, and everything else is refused with the cure."""

from __future__ import annotations

import dataclasses
import datetime
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rechannel.conf.settings import RedisSettings
from rechannel.daemon.cli.main import main
from rechannel.wire.redis.errors import StoreError, StoreRefusedError, StoreUnavailableError
from rechannel.wire.redis.store import Store
from testbed.processes import ProcessGroup
from testbed.redis_server import RedisServer, TlsFiles, find_server

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120)]
PASSWORD = "a-password-of-some-length"
HERE = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]


@pytest.fixture(scope="module", autouse=True)
def _server_with_tls() -> None:
    try:
        find_server(tls=True)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@dataclass(frozen=True)
class Authority:
    """A CA, and what it issues."""

    directory: Path
    name: str

    @property
    def file(self) -> Path:
        return self.directory / f"{self.name}.pem"

    def make(self) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(self.name)
        _write(self.directory / f"{self.name}.key", _private(key), 0o600)
        _write(self.file, _certificate(subject, subject, key, key, [], authority=True))
        return self

    def issue(self, name: str, hosts: list[x509.GeneralName], *, days: int = 1, since: int = -1) -> tuple[Path, Path]:
        """Return certificate and key for these hosts, valid from ``since`` days from now until ``days``."""
        mine = serialization.load_pem_private_key((self.directory / f"{self.name}.key").read_bytes(), None)
        key = ec.generate_private_key(ec.SECP256R1())
        data = _certificate(_name(name), _name(self.name), key, mine, hosts, days=days, since=since)  # type: ignore[arg-type]
        certificate, private = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        _write(certificate, data)
        _write(private, _private(key), 0o600)
        return certificate, private


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    kind = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    path.write_bytes(data)
    path.chmod(mode)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signs: ec.EllipticCurvePrivateKey,
    hosts: list[x509.GeneralName],
    *,
    authority: bool = False,
    days: int = 1,
    since: int = -1,
) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=since))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if authority:
        usage = dict.fromkeys(
            (
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "encipher_only",
                "decipher_only",
                "digital_signature",
            ),
            False,
        )
        made = made.add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
    if hosts:
        made = made.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return made.sign(signs, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    (made / "password").write_text(PASSWORD + "\n")
    (made / "password").chmod(0o600)
    return made


@pytest.fixture(scope="module")
def ours(directory: Path) -> Authority:
    return Authority(directory, "our-ca").make()


@pytest.fixture(scope="module")
def other(directory: Path) -> Authority:
    return Authority(directory, "other-ca").make()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessGroup]:
    with ProcessGroup(tmp_path_factory.mktemp("logs")) as made:
        yield made


@pytest.fixture(scope="module")
def servers(group: ProcessGroup, ours: Authority) -> Iterator[dict[str, RedisServer]]:
    """A server of each kind: good, one that wants client certificates, and those whose own is not right."""
    name = [x509.DNSName("redis.internal")]
    kinds = {
        "good": ours.issue("good", HERE),
        "mutual": ours.issue("mutual", HERE),
        "expired": ours.issue("expired", HERE, days=-1, since=-3),
        "future": ours.issue("future", HERE, days=3, since=2),
        "elsewhere": ours.issue("elsewhere", name),
    }
    made = {}
    for kind, (certificate, key) in kinds.items():
        tls = TlsFiles(ours.file, certificate, key, clients=kind == "mutual")
        made[kind] = RedisServer(group, name=f"redis-{kind}", password=PASSWORD, tls=tls).start()
    made["plain"] = RedisServer(group, name="redis-plain", password=PASSWORD, tcp=True).start()
    yield made
    for server in made.values():
        server.close()


def settings(server: RedisServer, directory: Path, *, scheme: str = "rediss", **more: object) -> RedisSettings:
    arguments = {"tls_ca_file": str(directory / "our-ca.pem"), **{name: str(value) for name, value in more.items()}}
    return RedisSettings(
        url=f"{scheme}://127.0.0.1:{server.port}/0", password_file=str(directory / "password"), timeout=5, **arguments
    )


def check(actual: RedisSettings) -> str:
    store = Store(actual, "default")
    try:
        return store.check()
    finally:
        store.close()


def test_a_trusted_server_is_used(servers: dict[str, RedisServer], directory: Path) -> None:
    assert check(settings(servers["good"], directory))
    by_name = dataclasses.replace(
        settings(servers["good"], directory), url=f"rediss://localhost:{servers['good'].port}/0"
    )
    assert check(by_name)


@pytest.mark.parametrize(
    ("kind", "more", "phrase"),
    [
        ("expired", {}, "its certificate has expired: renew it on the server"),
        ("future", {}, "its certificate is not valid yet: check this machine's clock"),
        ("elsewhere", {}, "its certificate is for another name"),
        ("good", {"tls_ca_file": "other-ca.pem"}, "redis.tls_ca_file must hold the certificate of the CA"),
        ("good", {"tls_ca_file": ""}, "redis.tls_ca_file must hold the certificate of the CA"),
    ],
)
def test_what_cannot_be_trusted_is_refused_with_the_cure(
    servers: dict[str, RedisServer], directory: Path, other: Authority, kind: str, more: dict[str, str], phrase: str
) -> None:
    files = {name: directory / value if value else "" for name, value in more.items()}
    with pytest.raises(StoreRefusedError) as caught:
        check(settings(servers[kind], directory, **files))
    assert phrase in str(caught.value)
    assert f"127.0.0.1:{servers[kind].port}" in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_a_client_without_tls_gets_nowhere(servers: dict[str, RedisServer], directory: Path) -> None:
    with pytest.raises(StoreError):
        check(settings(servers["good"], directory, scheme="redis", tls_ca_file=""))


def test_a_server_without_tls_is_waited_for_but_doubted(servers: dict[str, RedisServer], directory: Path) -> None:
    result = dataclasses.replace(settings(servers["plain"], directory), timeout=0.5)
    with pytest.raises(StoreUnavailableError, match="check that this is its TLS port"):
        check(result)


def test_a_server_may_want_our_certificate(
    servers: dict[str, RedisServer], directory: Path, ours: Authority, other: Authority
) -> None:
    certificate, key = ours.issue("client", [])
    server = servers["mutual"]
    assert check(settings(server, directory, tls_certificate_file=certificate, tls_key_file=key))
    with pytest.raises(StoreError, match=r"redis\.tls_certificate_file"):  # it may just hang up
        check(settings(server, directory))
    certificate, key = other.issue("stranger", [])
    with pytest.raises(StoreError, match=r"redis\.tls_certificate_file"):
        check(settings(server, directory, tls_certificate_file=certificate, tls_key_file=key))


def test_files_that_cannot_be_used_are_named(
    servers: dict[str, RedisServer], directory: Path, ours: Authority, tmp_path: Path
) -> None:
    certificate, key = ours.issue("named", [])
    _, another = ours.issue("another", [])
    garbage = tmp_path / "garbage"
    garbage.write_text("-----BEGIN PRIVATE KEY-----\nMARK\n-----END PRIVATE KEY-----\n")
    garbage.chmod(0o600)
    readable = tmp_path / "readable"
    readable.write_bytes(key.read_bytes())
    readable.chmod(0o644)
    for arguments, sentence in (
        ({"tls_ca_file": tmp_path / "none"}, "redis.tls_ca_file: .*cannot be read"),
        ({"tls_ca_file": garbage}, "redis.tls_ca_file: .*holds no certificate"),
        ({"tls_certificate_file": tmp_path / "none", "tls_key_file": key}, "redis.tls_certificate_file: .*cannot be"),
        ({"tls_certificate_file": certificate, "tls_key_file": garbage}, "no certificate and its key"),
        ({"tls_certificate_file": certificate, "tls_key_file": another}, "no certificate and its key"),
        ({"tls_certificate_file": certificate, "tls_key_file": readable}, r"redis.tls_key_file: .*`chmod 6[04]0 "),
    ):
        with pytest.raises(StoreRefusedError, match=sentence) as caught:
            Store(settings(servers["good"], directory, **arguments), "default")
        assert "MARK" not in str(caught.value)


def test_a_server_that_is_away_may_come_back(directory: Path, ours: Authority, group: ProcessGroup) -> None:
    certificate, key = ours.issue("away", HERE)
    server = RedisServer(group, name="redis-away", tls=TlsFiles(ours.file, certificate, key)).start()
    result = dataclasses.replace(settings(server, directory), password_file="")
    store = Store(result, "default")
    assert store.check()
    server.stop()
    with pytest.raises(StoreUnavailableError):
        store.check()
    server.start()
    assert store.check()
    store.close()
    server.close()


def test_the_command_line_says_it_in_a_sentence(
    servers: dict[str, RedisServer], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = settings(servers["expired"], directory)
    monkeypatch.delenv("RECHANNEL_CONFIG", raising=False)
    for name in ("url", "password_file", "tls_ca_file"):
        monkeypatch.setenv(f"RECHANNEL_REDIS__{name.upper()}", getattr(result, name))
    done = CliRunner().invoke(main, ["status"])
    assert done.exit_code == 5
    assert "its certificate has expired" in done.stderr
    assert "Traceback" not in done.output
