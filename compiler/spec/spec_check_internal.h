/* Interfaces between the files of spec_check: access to keys by short names, notes, and checks of
 * groups of keys */
#ifndef LLMC_COMPILER_SPEC_SPEC_CHECK_INTERNAL_H
#define LLMC_COMPILER_SPEC_SPEC_CHECK_INTERNAL_H

#include "compiler/spec/spec_table.h"

#define LOC(k) (t->val[K_##k].loc)
#define INT(k) spec_int(t, K_##k)
#define KNOWN(k) (t->val[K_##k].known)
#define ON(k) (t->val[K_##k].known && t->val[K_##k].num != 0)
#define IS(k, word) spec_word_is(t, K_##k, word)

/* Keys with the layers that have a recurrent block instead of attention */
enum { N_RECURRENT_KEY = 3 };
extern const SpecKey spec_recurrent_key[N_RECURRENT_KEY];

/* spec_check_note.c */
/* Add a note such as "n_heads = 8 is set here", or that the value is a default. */
void spec_check_note(SpecTable *t, SpecKey k);
/* Return the one of two keys that a later layer of values set. Errors are reported at that key. */
SpecKey spec_check_key(const SpecTable *t, SpecKey a, SpecKey b);
/* Return whether a layer has keys and values. If not, *why is the key that replaces them. */
bool spec_check_attends(const SpecTable *t, int64_t l, SpecKey *why);

/* spec_check_attention.c */
/* Check the indexer of latent attention. */
void spec_check_index(SpecTable *t);
void spec_check_heads(SpecTable *t);
void spec_check_rope(SpecTable *t);
/* Check KV types and their rotation. */
void spec_check_kv(SpecTable *t);
/* Check that positions can be stored in 16 bits in addition to the quantised rows (kv.window,
 * kv.sinks). */
void spec_check_exact(SpecTable *t);
void spec_check_mask(SpecTable *t);

/* spec_check_blocks.c */
/* Check layers with a recurrent state. */
void spec_check_states(SpecTable *t);
/* Check layers that lack one of their two blocks. */
void spec_check_halves(SpecTable *t);
void spec_check_moe(SpecTable *t);

#endif
