"""Whether a thread computed with denormal numbers: a sticky flag of the processor's, which costs nothing until read.

Numbers too small for a full mantissa (float32: below 1.2e-38) take a slow path for some instructions or all, by
processor: some hundred cycles instead of one. The flag is bit 1 of MXCSR, "denormal operand" (Intel SDM, volume 1,
10.2.3): set by the first instruction of SSE or AVX that reads one, kept by thread. Where such numbers are taken for
zero (DAZ), it is never set. No library function clears it: ``fetestexcept`` and its kin do not know it.
"""

from __future__ import annotations

import ctypes
import platform
import sys

#: ``fenv_t`` of glibc and musl on x86-64: the x87 environment of 28 bytes, then MXCSR.
_BYTES, _MXCSR = 32, 7
_DENORMAL = 1 << 1
_X86 = ("x86_64", "AMD64")


class DenormalFlag:
    """The flag of the thread that asks. Where there is none to ask for, it is never set."""

    __slots__ = ("_arguments", "_get", "_set", "_words")

    def __init__(self) -> None:
        buffer = ctypes.create_string_buffer(_BYTES)
        self._words = memoryview(buffer).cast("B").cast("I")
        self._arguments = (ctypes.byref(buffer),)
        self._get = self._set = None
        if sys.platform == "linux" and platform.machine() in _X86:
            library = ctypes.PyDLL(None)  # without letting go of the interpreter lock, as the other counters
            self._get, self._set = getattr(library, "fegetenv", None), getattr(library, "fesetenv", None)

    def met(self) -> bool:
        """True if the calling thread computed with a denormal number since it asked before."""
        if self._get is None or self._set is None:
            return False
        self._get(*self._arguments)
        if not self._words[_MXCSR] & _DENORMAL:
            return False
        self._words[_MXCSR] &= ~_DENORMAL
        self._set(*self._arguments)
        return True
