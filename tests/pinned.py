"""What a process must be told so that its bits do not depend on the processor."""

from __future__ import annotations

# oneDNN fuses ops on some processors only. Its matrix product, which TensorFlow uses without
# oneDNN too, has other kernels where there is AVX-512 or AMX: in these the last bits depend on
# where a tensor lies in memory.
PINNED = {"TF_ENABLE_ONEDNN_OPTS": "0", "ONEDNN_MAX_CPU_ISA": "AVX2"}
