"""Check of the files of the signing keys."""

from __future__ import annotations

from rechannel.conf.settings import Settings
from rechannel.daemon.doctor import security
from rechannel.wire.signing import KeyFileError, Signer, Verifier, fingerprint


def check_keys(settings: Settings) -> tuple[list[str], list[str]]:
    """Return the mistakes in the signing keys, and notes about them."""
    private, public = settings.signing.private_key_file, settings.signing.public_key_file
    mistakes, notes = [], []
    signer = verifier = None
    try:
        signer = Signer.from_file(private) if private else None
    except KeyFileError as error:
        mistakes.append(str(error))
    try:
        verifier = Verifier.from_file(public) if public else None
    except KeyFileError as error:
        mistakes.append(str(error))
    if not private:
        notes.append("signing.private_key_file is not set, so no controller can start with it")
    notes += security.key_notes(settings)
    if not public:
        notes.append("signing.public_key_file is not set: a link with this configuration accepts no placement")
    if verifier is not None:
        trusted = [fingerprint(key) for key in verifier.keys]
        if signer is not None and fingerprint(signer.public) not in trusted:
            mistakes.append(
                f"signing.public_key_file: {public} does not hold the public half of {private}: links would refuse all "
                "that this controller signs"
            )
        if len(trusted) > 1:
            notes.append(
                f"signing.public_key_file: {len(trusted)} keys are trusted ({', '.join(trusted)}); once no controller "
                "signs with the old one, drop it: `rechannel config keys --retire DIRECTORY`"
            )
    return mistakes, notes
