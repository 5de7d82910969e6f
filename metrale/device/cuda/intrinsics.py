"""What Numba has no call for: 128-bit loads and stores, bf16 by its bits, one-instruction reciprocal square root.

Every name here has a twin in :mod:`.twins` with the same signature, which the simulator runs. ``array`` is a
one-dimensional contiguous array, ``index`` counts its elements and must make a 16-byte aligned address.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.cuda.extending import intrinsic

_WORD, _FLOAT = ir.IntType(32), ir.FloatType()
_FOUR_WORDS = ir.VectorType(_WORD, 4)


def _address(context, builder, array_type, array, index, kind, offset=0):
    """Pointer to ``kind`` at element ``index`` (no wrap-around of negative indices), ``offset`` bytes further."""
    data = context.make_array(array_type)(context, builder, value=array).data
    pointer = builder.gep(data, [index])
    if offset:
        pointer = builder.gep(builder.bitcast(pointer, ir.IntType(8).as_pointer()), [ir.Constant(_WORD, offset)])
    return builder.bitcast(pointer, kind.as_pointer())


def _load_words(context, builder, array_type, array, index, offset=0):
    vector = builder.load(_address(context, builder, array_type, array, index, _FOUR_WORDS, offset), align=16)
    return [builder.extract_element(vector, ir.Constant(_WORD, i)) for i in range(4)]


def _store_words(context, builder, array_type, array, index, words, offset=0):
    vector = ir.Constant(_FOUR_WORDS, ir.Undefined)
    for i, word in enumerate(words):
        vector = builder.insert_element(vector, word, ir.Constant(_WORD, i))
    builder.store(vector, _address(context, builder, array_type, array, index, _FOUR_WORDS, offset), align=16)


def _cast_index(context, builder, value, kind):
    return context.cast(builder, value, kind, types.intp)


@intrinsic
def load8_bf16(typingctx, array, index):
    """Eight bf16 elements as float32, one 128-bit load."""

    def codegen(context, builder, signature, args):
        at = _cast_index(context, builder, args[1], signature.args[1])
        values = []
        for word in _load_words(context, builder, signature.args[0], args[0], at):
            low = builder.shl(word, ir.Constant(_WORD, 16))
            high = builder.and_(word, ir.Constant(_WORD, 0xFFFF0000))
            values += [builder.bitcast(low, _FLOAT), builder.bitcast(high, _FLOAT)]
        return context.make_tuple(builder, signature.return_type, values)

    return types.UniTuple(types.float32, 8)(array, index), codegen


@intrinsic
def load8_f32(typingctx, array, index):
    """Eight float32 elements, two 128-bit loads."""

    def codegen(context, builder, signature, args):
        at = _cast_index(context, builder, args[1], signature.args[1])
        words = [_load_words(context, builder, signature.args[0], args[0], at, offset) for offset in (0, 16)]
        values = [builder.bitcast(word, _FLOAT) for half in words for word in half]
        return context.make_tuple(builder, signature.return_type, values)

    return types.UniTuple(types.float32, 8)(array, index), codegen


@intrinsic
def load4_f32(typingctx, array, index):
    """Four float32 elements, one 128-bit load."""

    def codegen(context, builder, signature, args):
        at = _cast_index(context, builder, args[1], signature.args[1])
        words = _load_words(context, builder, signature.args[0], args[0], at)
        return context.make_tuple(builder, signature.return_type, [builder.bitcast(word, _FLOAT) for word in words])

    return types.UniTuple(types.float32, 4)(array, index), codegen


@intrinsic
def store8_bf16(typingctx, array, index, values):
    """Eight float32 values, rounded to nearest even, one 128-bit store."""

    def codegen(context, builder, signature, args):
        at = _cast_index(context, builder, args[1], signature.args[1])
        floats = [builder.extract_value(args[2], i) for i in range(8)]
        pack = ir.InlineAsm(ir.FunctionType(_WORD, [_FLOAT, _FLOAT]), "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f")
        words = [builder.call(pack, [floats[2 * i + 1], floats[2 * i]]) for i in range(4)]
        _store_words(context, builder, signature.args[0], args[0], at, words)
        return context.get_dummy_value()

    return types.void(array, index, values), codegen


@intrinsic
def store8_f32(typingctx, array, index, values):
    """Eight float32 values, two 128-bit stores."""

    def codegen(context, builder, signature, args):
        at = _cast_index(context, builder, args[1], signature.args[1])
        words = [builder.bitcast(builder.extract_value(args[2], i), _WORD) for i in range(8)]
        _store_words(context, builder, signature.args[0], args[0], at, words[:4])
        _store_words(context, builder, signature.args[0], args[0], at, words[4:], 16)
        return context.get_dummy_value()

    return types.void(array, index, values), codegen


@intrinsic
def store4_f32(typingctx, array, index, values):
    """Four float32 values, one 128-bit store."""

    def codegen(context, builder, signature, args):
        at = _cast_index(context, builder, args[1], signature.args[1])
        words = [builder.bitcast(builder.extract_value(args[2], i), _WORD) for i in range(4)]
        _store_words(context, builder, signature.args[0], args[0], at, words)
        return context.get_dummy_value()

    return types.void(array, index, values), codegen


@intrinsic
def float_of_bf16(typingctx, bits):
    """The float32 whose upper half the 16 bits are."""

    def codegen(context, builder, signature, args):
        word = builder.zext(args[0], _WORD)
        return builder.bitcast(builder.shl(word, ir.Constant(_WORD, 16)), _FLOAT)

    return types.float32(types.uint16), codegen


@intrinsic
def bf16_of_float(typingctx, value):
    """Sixteen bits, rounded to nearest even."""

    def codegen(context, builder, signature, args):
        half = ir.IntType(16)
        pack = ir.InlineAsm(ir.FunctionType(half, [_FLOAT]), "cvt.rn.bf16.f32 $0, $1;", "=h,f")
        return builder.call(pack, [args[0]])

    return types.uint16(types.float32), codegen


@intrinsic
def reciprocal(typingctx, value):
    """1 / value within one unit in the last place, subnormal results too; 0 of infinity."""

    def codegen(context, builder, signature, args):
        return builder.call(ir.InlineAsm(ir.FunctionType(_FLOAT, [_FLOAT]), "rcp.approx.f32 $0, $1;", "=f,f"), args)

    return types.float32(types.float32), codegen
