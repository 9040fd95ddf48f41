/* Conversion between an fp32 and its bits */
#ifndef LLMC_FORMATS_FLOAT_BITS_H
#define LLMC_FORMATS_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

static inline float
float_of_bits(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof f);
	return f;
}

static inline uint32_t
bits_of_float(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof u);
	return u;
}

#endif
