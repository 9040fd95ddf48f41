/* Types of cached keys and values. A row is the key or value of one head at one position (MLA: a
 * latent and its key form one row). Each row is quantised alone: its bytes do not depend on
 * neighbouring rows. So the bytes are the same in every prefill chunk, after a fork, and alone.
 *
 *   value = scale * code + zero     scale and zero are f16, one pair per group of a row
 *   f8    codes e4m3, group: the row, scale = largest / 448
 *   int8  codes -127 .. 127, group: the row, scale = largest / 127
 *   f8_32, int8_32   the same codes, groups of 32: for latents, whose range differs from their
 *                    key's
 *   int6  codes -31 .. 31, groups of 32, scale = largest / 31
 *   int4  codes 0 .. 15, groups of 32, zero: the smallest value, scale = (largest - smallest) / 15
 *   int4c keys only, codes of int4: a group is one element of a head over the 32 positions in a
 * page.
 *
 * An int4c page is quantised when it is full, from its exact rows. Attention reads at least the
 * last 32 positions exactly, so any page that it reads as codes is full. int4c keys are not
 * rotated.
 *
 * With rotation, a row of a quantised type is first multiplied by a Hadamard matrix over each
 * kv_rotation(dim) of its elements, which spreads outliers over all of them. Queries and results
 * are rotated in the same way, so attention gives the same values.
 *
 * Rows of some positions may be stored a second time, unquantised, in kv_exact's type. These are
 * rotated like the others. */
#ifndef LLMC_FORMATS_KV_TYPE_H
#define LLMC_FORMATS_KV_TYPE_H

#include <stdbool.h>
#include <stdint.h>

#include "templates/common/kv_types.h"

/* "f32 f16 ...": types that a description accepts. KV_ROW_TYPE_WORDS: types for both keys and
 * values, so without int4c */
#define KV_TYPE_WORD(name, capitals, bits, group, scales) " " #name
#define KV_TYPE_WORDS (&(KV_TYPES(KV_TYPE_WORD))[1])
#define KV_ROW_TYPE_WORDS (&(KV_ROW_TYPES(KV_TYPE_WORD))[1])

typedef enum KvType {
	KVT_NONE = -1,
#define X(name, capitals, bits, group, scales) KVT_##capitals,
	KV_TYPES(X)
#undef X
	    KVT_COUNT
} KvType;

typedef struct KvTypeInfo {
	const char *text;
	int bits;   /* bits per code */
	int group;  /* elements per scale; 0: the row */
	int scales; /* bytes of a group's scale and zero; 0: unquantised */
} KvTypeInfo;

enum {
	KV_LEAST_ROTATION = 4,
	KV_LEAST_RECENT = 32 /* minimum of kv.window with int4c */,
	/* limit of the recent positions, and of the first positions, that exact pages hold */
	KV_MOST_EXACT = 1 << 20
};

const KvTypeInfo *kv_type_info(KvType t);   /* t must be valid */
KvType kv_type_from_text(const char *text); /* KVT_NONE: unknown */
bool kv_quantised(KvType t);
bool kv_by_channel(KvType t);
bool kv_rotates(KvType t); /* are rows of this type rotated if rotation is enabled? */
/* type of exact rows next to quantised rows: f16 for quantised types, else the type itself */
KvType kv_exact(KvType t);
/* kv_for_latents: may a latent and its key share a row of this type? Not with one scale per row,
 * which does not suit both. kv_of_latents: returns the type with the same codes in groups of 32 */
bool kv_for_latents(KvType t);
KvType kv_of_latents(KvType t);
/* Bytes of a row of dim elements, rounded up to whole groups. dim <= 2^40 */
int64_t kv_row_bytes(KvType t, int64_t dim);
/* Number of elements per Hadamard matrix: the largest power of two that divides dim. */
int64_t kv_rotation(int64_t dim);

#endif
