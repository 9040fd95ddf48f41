/* What kernels with gates share: the words of `gate`, and softplus. */
#ifndef LLMC_CPU_STATE_H
#define LLMC_CPU_STATE_H

#include <stdbool.h>

#include "common/cpu_math_share.h"

#define GATE_none(z) (z)
#define GATE_silu(z) vf_silu(z)
#define GATE_sigmoid(z) vf_sigmoid(z)
#define GATE_softplus(z) vf_softplus(z)

/* log(1 + e^x) = max(x, 0) + log(1 + u), u = e^-|x| in (0, 1]; log(1 + u) = 2 artanh(z), z = u / (2 + u) <= 1/3, by its series. Relative error about 2e-7. */
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

#endif
