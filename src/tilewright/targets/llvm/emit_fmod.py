"""fmod as a function of the module: exact, by long division on the bits, without a library."""

from __future__ import annotations

_TEXT = """define internal {F} @tw.fmod.{s}({F} %x, {F} %y) #0 {{
entry:
  %bx = bitcast {F} %x to {I}
  %by = bitcast {F} %y to {I}
  %sign = and {I} %bx, {sign}
  %ax = and {I} %bx, {magnitude}
  %ay = and {I} %by, {magnitude}
  %y0 = icmp eq {I} %ay, 0
  %ynan = icmp ugt {I} %ay, {inf}
  %xbad = icmp uge {I} %ax, {inf}
  %bad0 = or i1 %y0, %ynan
  %bad = or i1 %bad0, %xbad
  br i1 %bad, label %invalid, label %ordered
invalid:
  %p = fmul {F} %x, %y
  %nan = fdiv {F} %p, %p
  ret {F} %nan
ordered:
  %less = icmp ult {I} %ax, %ay
  br i1 %less, label %same, label %divide
same:
  ret {F} %x
divide:
  %zx = call {I} @llvm.ctlz.{I}({I} %ax, i1 true)
  %zy = call {I} @llvm.ctlz.{I}({I} %ay, i1 true)
  %ex0 = lshr {I} %ax, {m}
  %ey0 = lshr {I} %ay, {m}
  %subx = icmp eq {I} %ex0, 0
  %suby = icmp eq {I} %ey0, 0
  %shx = sub {I} %zx, {e}
  %shy = sub {I} %zy, {e}
  %exs = sub {I} 1, %shx
  %eys = sub {I} 1, %shy
  %ex = select i1 %subx, {I} %exs, {I} %ex0
  %ey = select i1 %suby, {I} %eys, {I} %ey0
  %mxn0 = and {I} %ax, {mask}
  %mxn = or {I} %mxn0, {one}
  %mxs = shl {I} %ax, %shx
  %mx = select i1 %subx, {I} %mxs, {I} %mxn
  %myn0 = and {I} %ay, {mask}
  %myn = or {I} %myn0, {one}
  %mys = shl {I} %ay, %shy
  %my = select i1 %suby, {I} %mys, {I} %myn
  br label %loop
loop:
  %m = phi {I} [ %mx, %divide ], [ %twice, %next ]
  %n = phi {I} [ %ex, %divide ], [ %n1, %next ]
  %diff = sub {I} %m, %my
  %fits = icmp sge {I} %diff, 0
  %r = select i1 %fits, {I} %diff, {I} %m
  %zero = icmp eq {I} %r, 0
  br i1 %zero, label %exact, label %check
exact:
  %zf = bitcast {I} %sign to {F}
  ret {F} %zf
check:
  %more = icmp sgt {I} %n, %ey
  br i1 %more, label %next, label %pack
next:
  %twice = shl {I} %r, 1
  %n1 = sub {I} %n, 1
  br label %loop
pack:
  %zr = call {I} @llvm.ctlz.{I}({I} %r, i1 true)
  %shr = sub {I} %zr, {e}
  %en = sub {I} %n, %shr
  %normal = icmp sgt {I} %en, 0
  %rn0 = shl {I} %r, %shr
  %rn1 = sub {I} %rn0, {one}
  %ens = shl {I} %en, {m}
  %rn = or {I} %rn1, %ens
  %back0 = sub {I} 1, %en
  %back = select i1 %normal, {I} 0, {I} %back0
  %rs = lshr {I} %rn0, %back
  %bits0 = select i1 %normal, {I} %rn, {I} %rs
  %bits = or {I} %bits0, %sign
  %result = bitcast {I} %bits to {F}
  ret {F} %result
}}
"""


def fmod_function(type: str) -> str:
    """`internal` LLVM function tw.fmod.f32 or .f64 for the type float or double."""
    bits, mantissa = (32, 23) if type == "float" else (64, 52)
    exponent = bits - 1 - mantissa
    one = 1 << mantissa
    return _TEXT.format(
        F=type,
        I=f"i{bits}",
        s=f"f{bits}",
        sign=-(1 << (bits - 1)),
        magnitude=(1 << (bits - 1)) - 1,
        inf=((1 << exponent) - 1) << mantissa,
        m=mantissa,
        e=exponent,
        mask=one - 1,
        one=one,
    )
