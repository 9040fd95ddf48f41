/* Arithmetic on pairs of halves. Each result is rounded once, to nearest even. */
#ifndef LLMC_CUDA_MATH_HALF2_H
#define LLMC_CUDA_MATH_HALF2_H

#include "cuda/math/math.h"

#ifndef LLMC_EMU
DEV unsigned
h2_add(unsigned a, unsigned b)
{
	unsigned d;
	asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
	return d;
}

DEV unsigned
h2_mul(unsigned a, unsigned b)
{
	unsigned d;
	asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
	return d;
}

DEV unsigned
h2_fma(unsigned a, unsigned b, unsigned c)
{
	unsigned d;
	asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
	return d;
}
/* v & mask | bits in one instruction. If the compiler saw both constants, it would emit two. */
DEV unsigned
h2_select(unsigned v, unsigned mask, unsigned bits)
{
	unsigned d;
	asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(v), "r"(mask), "r"(bits));
	return d;
}
/* Permutes the bytes of a (0 .. 3) and b (4 .. 7). Each nibble of `which` selects one byte; a
 * nibble n >= 8 yields the sign bit of byte n - 8, replicated. Not __byte_perm: it uses only three
 * bits per nibble, and the compiler would mask them first. */
DEV unsigned
byte_choose(unsigned a, unsigned b, unsigned which)
{
	unsigned d;
	asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(which));
	return d;
}
#endif

/* v in both halves of the register */
DEV unsigned
h2_twice(unsigned v)
{
	return __byte_perm(v, 0, 0x1010);
}
DEV unsigned
h2_twice_hi(unsigned v)
{
	return __byte_perm(v, 0, 0x3232);
}

#endif
