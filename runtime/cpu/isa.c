/* What this processor runs, by cpuid and by what the system saves on a switch. Never by what a compiler guesses, which
 * is wrong on virtual machines. */
#include <stddef.h>

#include "plan/target.h"
#include "runtime/cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>

static unsigned long long
saved_state(void)
{
	unsigned a, d;

	__asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
	return (unsigned long long)d << 32 | a;
}

/* AMX would come here as level 5: leaf 7 edx bits 24 and 25, XCR0 bits 17 and 18, and the permission that
 * arch_prctl(ARCH_REQ_XCOMP_PERM, 18) asks the kernel for. */
static int
level(void)
{
	unsigned a, b, d, c1, b7, c7, cx;

	if (!__get_cpuid(1, &a, &b, &c1, &d))
		return 1;
	unsigned need = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C | bit_MOVBE | bit_POPCNT;
	if ((c1 & need) != need || (saved_state() & 6) != 6)
		return 1;
	if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d) || !__get_cpuid(0x80000001, &a, &b, &cx, &d))
		return 1;
	need = bit_AVX2 | bit_BMI | bit_BMI2;
	if ((b7 & need) != need || !(cx & bit_LZCNT))
		return 1;
	need = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL | bit_AVX512CD;
	if ((b7 & need) != need || !(c7 & bit_AVX512VNNI) || (saved_state() & 0xe6) != 0xe6)
		return 3;
	return 4;
}
#else
static int
level(void)
{
	return 1;
}
#endif

const char *
isa_best(void)
{
	const char *best = NULL;

	for (int i = 0; target_at(i); i++)
		if (isa_runs(target_at(i)->name))
			best = target_at(i)->name;
	return best;
}

bool
isa_runs(const char *target)
{
	const Target *t = target_find(target);

	return t && t->kind == TARGET_CPU && t->level <= level();
}
