// exp and what is made of it, on sixteen lanes; included after a simd header.
#ifndef SM70_CPU_MATH_KERNELS_H_
#define SM70_CPU_MATH_KERNELS_H_

namespace sm70 {
namespace {

// exp(x) within 2 units of the last place: zero below -87.7, infinity above 88.3. NaN stays NaN.
// x = n ln2 + r with |r| <= ln2 / 2; exp(r) = 1 + r + r^2 p(r), p of degree 4 fitted to a relative error of 3.1e-9.
inline F exp(F x) {
  // At the ends n is -127 and 128, whose exponent fields are those of zero and infinity. A NaN is the second operand
  // and passes.
  x = min(set(89.0f), max(set(-88.0f), x));
  const I n = to_int(mul(x, set(0x1.715476p+0f)));
  const F whole = to_float(n);
  F r = fma(whole, set(-0x1.62e400p-1f), x);  // ln2 in two parts, the first with 8 spare bits
  r = fma(whole, set(-0x1.7f7d1cp-20f), r);
  F p = set(0x1.6a23cep-10f);
  p = fma(p, r, set(0x1.123a20p-7f));
  p = fma(p, r, set(0x1.5558f2p-5f));
  p = fma(p, r, set(0x1.555492p-3f));
  p = fma(p, r, set(0x1.fffffcp-2f));
  p = fma(p, mul(r, r), r);
  return mul(add(p, set(1.0f)), from_bits(left32<23>(add(n, set_word(127)))));
}

// 1 / (1 + exp(-x)).
inline F sigmoid(F x) { return div(set(1.0f), add(set(1.0f), exp(sub(zero(), x)))); }

// x * sigmoid(x), with one division.
inline F silu(F x) { return div(x, add(set(1.0f), exp(sub(zero(), x)))); }

}  // namespace
}  // namespace sm70

#endif  // SM70_CPU_MATH_KERNELS_H_
