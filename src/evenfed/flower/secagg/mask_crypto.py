"""Masks over vectors of whole numbers, and the keys and shares that they are made of.

The arithmetic is that of 64-bit words, which wrap around: a masked vector is uniform, and sums are exact. Keys are
X25519, seeds have 256 bits, and a seed is stretched to a mask by AES-256 in counter mode, all of `cryptography`. Shares
are Shamir's, by Flower's own functions, which are those of `pycryptodome`.
"""

import os
from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from ...core.errors import InputError

Vector = NDArray[np.float64]
Words = NDArray[np.uint64]

LARGEST = 8.0  # entries of a vector lie within +- this
FRACTION = 40  # binary digits after the point; a sum of 2^20 clients' entries then stays below half of 2^64
REACH = 2.0**50  # numbers lie within +- this
_DIGITS = 32  # binary digits of a number in each of its words
WORDS = 3  # per number

KEY_LENGTH = 32
_NONCE_LENGTH = 12
_MASK = b"evenfed mask"
_BOX = b"evenfed shares"


def words_of_numbers(numbers: Iterable[float]) -> Words:
    """Numbers within +-2^50, three words each; their sum is exact to 2^-41 per client."""
    words = []
    low_digits = (1 << _DIGITS) - 1
    for number in numbers:
        if not abs(number) <= REACH:
            raise InputError("a number to be summed is not finite or too large; is the loss of this client finite?")
        rest = round(number * 2.0**FRACTION)
        for _ in range(WORDS - 1):
            words.append(rest & low_digits)
            rest >>= _DIGITS
        words.append(rest % 2**64)
    return np.array(words, dtype=np.uint64)


def numbers_of_words(words: Words) -> list[float]:
    numbers = []
    for row in words.reshape(-1, WORDS):
        whole = int(row[-1:].view(np.int64)[0])
        for word in row[-2::-1].tolist():
            whole = (whole << _DIGITS) + word
        numbers.append(whole / 2**FRACTION)
    return numbers


def words_of_vector(vector: Vector) -> Words:
    """Entries within +-8, one word each, rounded to 2^-40."""
    within = np.abs(vector) <= LARGEST  # False where it is not a number
    if not bool(within.all()):
        raise InputError(f"an entry to be masked is not finite or beyond {LARGEST:g}; lower the learning rate")
    whole = np.rint(vector * 2.0**FRACTION)
    return whole.astype(np.int64).view(np.uint64)


def vector_of_words(words: Words) -> Vector:
    vector: Vector = words.view(np.int64) / 2.0**FRACTION
    return vector


def new_key() -> bytes:
    return X25519PrivateKey.generate().private_bytes_raw()


def new_seed() -> bytes:
    return os.urandom(KEY_LENGTH)


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def check_public(public: bytes) -> None:
    """Refuse what no secret can be agreed with: another length, or a point of low order."""
    _agreed(new_key(), public, _MASK)


def mask_of(seed: bytes, size: int) -> Words:
    """The mask [size] of a seed."""
    first_block = bytes(16)  # a seed is used for one mask
    stream = Cipher(algorithms.AES256(seed), modes.CTR(first_block)).encryptor()
    drawn = stream.update(bytes(8 * size))
    return np.frombuffer(drawn, dtype="<u8").astype(np.uint64)


def pair_mask(private: bytes, public: bytes, size: int) -> Words:
    """The mask that two clients share, by the private key of one and the public key of the other."""
    return mask_of(_agreed(private, public, _MASK), size)


def sealed(private: bytes, public: bytes, content: bytes, context: bytes) -> bytes:
    """A box that the holder of the other key can open, in the same context."""
    nonce = os.urandom(_NONCE_LENGTH)
    cipher = ChaCha20Poly1305(_agreed(private, public, _BOX))
    return nonce + cipher.encrypt(nonce, content, context)


def unsealed(private: bytes, public: bytes, box: bytes, context: bytes) -> bytes:
    """What is in a box; raises where it was not made for this key and context."""
    cipher = ChaCha20Poly1305(_agreed(private, public, _BOX))
    nonce = box[:_NONCE_LENGTH]
    return cipher.decrypt(nonce, box[_NONCE_LENGTH:], context)


def _agreed(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """The secret of two key pairs, for one purpose."""
    key = X25519PrivateKey.from_private_bytes(private)
    other = X25519PublicKey.from_public_bytes(public)
    both = sorted([public_of(private), public])
    secret = HKDF(SHA256(), KEY_LENGTH, salt=None, info=purpose + both[0] + both[1])
    return secret.derive(key.exchange(other))
