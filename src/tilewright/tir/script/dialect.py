"""Names that a script needs at the moment its `def` runs: parameter annotations.

The body of a script is read from its source and never run, so nothing else needs to exist. A file that starts with
`from __future__ import annotations` does not need these either.
"""

from __future__ import annotations


class BufferAnnotation:
    """Stands for the type of a buffer parameter: `Buffer[(16, 16), "float32"]` or `Buffer((16, 16), scope="x")`."""

    def __getitem__(self, item: object) -> BufferAnnotation:
        return self

    def __call__(self, *arguments: object, **keywords: object) -> BufferAnnotation:
        """The annotation with more said."""
        return self


Buffer = BufferAnnotation()
int1 = int2 = int4 = int8 = int16 = int32 = int64 = "scalar"
uint1 = uint2 = uint4 = uint8 = uint16 = uint32 = uint64 = "scalar"
float16 = float32 = float64 = bfloat16 = "scalar"
float8_e4m3fn = float8_e4m3fnuz = float8_e5m2 = float8_e5m2fnuz = float8_e8m0fnu = float4_e2m1fn = "scalar"
