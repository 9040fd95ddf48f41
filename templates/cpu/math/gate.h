/* Functions shared by kernels with gates and recurrent states: the functions that `gate` may name,
 * softplus, and powers of 2. */
#ifndef LLMC_CPU_MATH_GATE_H
#define LLMC_CPU_MATH_GATE_H

#include <stdbool.h>

#include "cpu/elementwise/partition.h"

#define GATE_none(z) (z)
#define GATE_silu(z) vf_silu(z)
#define GATE_sigmoid(z) vf_sigmoid(z)
#define GATE_softplus(z) vf_softplus(z)

/* log(1 + e^x) = max(x, 0) + log(1 + u) with u = e^-|x| in (0, 1]. log(1 + u) = 2 artanh(z) with z
 * = u / (2 + u) <= 1/3, computed by its series. Relative error about 2e-7. */
LLMC_INLINE vf
vf_softplus(vf x)
{
	vf u = vf_exp(-vf_abs(x)), z = u / (vf_set1(2) + u), z2 = z * z, p = vf_set1(2.f / 15);

	p = vf_fma(p, z2, vf_set1(2.f / 13));
	p = vf_fma(p, z2, vf_set1(2.f / 11));
	p = vf_fma(p, z2, vf_set1(2.f / 9));
	p = vf_fma(p, z2, vf_set1(2.f / 7));
	p = vf_fma(p, z2, vf_set1(2.f / 5));
	p = vf_fma(p, z2, vf_set1(2.f / 3));
	p = vf_fma(p, z2, vf_set1(2));
	return vf_fma(p, z, vf_max(x, vf_set1(0)));
}

/* 2^x, about 1 ulp; exactly 1 at 0, exactly 0 below -126. x = n + r as in vf_exp, with 2^r by a
 * polynomial of degree 6 (largest relative error 2e-8). */
LLMC_INLINE vf
vf_exp2(vf x)
{
	const vf magic = vf_set1(12583039.0f), one = vf_set1(1.0f), lo = vf_set1(-126.0f);
	const vf c = vf_min(vf_set1(127.49f), vf_max(lo, x)), t = c + magic, r = c - (t - magic);
	vf p = vf_set1(0.00015353363f);

	p = vf_fma(p, r, vf_set1(0.0013398876f));
	p = vf_fma(p, r, vf_set1(0.009618437f));
	p = vf_fma(p, r, vf_set1(0.055503324f));
	p = vf_fma(p, r, vf_set1(0.24022648f));
	p = vf_fma(p, r, vf_set1(0.6931472f));
	p = vf_fma(p, r, one);
	return vf_zero_below(x, lo, p * (vf)((vi)t << 23));
}

#endif
