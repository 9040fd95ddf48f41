/* Assumptions about the platform, checked by the compiler. docs/adding-a-platform.md lists the
 * files that a port replaces. */

#if __SIZEOF_POINTER__ < 8
#error "llmc needs a 64-bit processor: it maps checkpoints, which are larger than 4 GiB, as a whole"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "llmc needs a little-endian processor: checkpoints and its own files are little-endian"
#endif
#ifndef __linux__
#error "llmc runs on Linux only: docs/adding-a-platform.md lists the files that a port replaces"
#endif

_Static_assert(sizeof(int) == 4 && sizeof(long long) == 8 && sizeof(float) == 4,
               "int has 32 bits, long long 64, float 32");
_Static_assert(__FLT_MANT_DIG__ == 24 && __DBL_MANT_DIG__ == 53,
               "float and double are of IEEE 754");
