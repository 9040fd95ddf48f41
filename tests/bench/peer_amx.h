/* GCC up to 12 assumes that ldtilecfg reads 8 of its 64 bytes and drops the stores to the others.
 * So llama.cpp's AMX kernels load an invalid configuration and crash. This header, included before
 * each file of its build, declares the bytes that are read. */
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define _tile_loadconfig(config)                                                                   \
	__asm__ volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])(config)))
#endif
