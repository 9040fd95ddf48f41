/* GCC up to 12 tells its optimiser that ldtilecfg reads 8 bytes of the 64, and the stores of the
 * others are dropped: llama.cpp's AMX kernels, compiled so, load a configuration of garbage and
 * die. Included before each file of its build, this says what is read. */
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define _tile_loadconfig(config)                                                                   \
	__asm__ volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])(config)))
#endif
