/* Helpers for rules between keys: notes, the key to report, layers with keys and values */
#include "compiler/spec/spec_check_internal.h"
#include "compiler/spec/spec_table.h"

const SpecKey spec_recurrent_key[N_RECURRENT_KEY] = { K_linear_layers, K_conv_layers,
	                                              K_ssm_layers };

void
spec_check_note(SpecTable *t, SpecKey k)
{
	const SpecVal *v = &t->val[k];
	const char *text = spec_val_text(t, k, t->a);

	if (v->from == FROM_DEFAULT)
		note_at(t->d, (Loc){ .src = t->file.src }, "%s is %s by default", spec_key[k].path,
		        text);
	else
		note_at(t->d, v->loc, "%s = %s is set here", spec_key[k].path, text);
}

SpecKey
spec_check_key(const SpecTable *t, SpecKey a, SpecKey b)
{
	return t->val[a].from >= t->val[b].from ? a : b;
}

bool
spec_check_attends(const SpecTable *t, int64_t l, SpecKey *why)
{
	const uint8_t *blocks = t->val[K_att_layers].layers;

	for (int i = 0; i < N_RECURRENT_KEY; i++)
		if (t->val[spec_recurrent_key[i]].layers &&
		    t->val[spec_recurrent_key[i]].layers[l] &&
		    !(spec_recurrent_key[i] == K_ssm_layers &&
		      (ON(ssm_parallel) || t->val[K_shared_layers].layers[l]))) {
			*why = spec_recurrent_key[i];
			return false;
		}
	*why = K_att_layers;
	return !blocks || blocks[l];
}
