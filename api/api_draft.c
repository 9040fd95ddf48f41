/* Draft checkpoints: makes a model output the rows that a draft checkpoint reads, and checks that
 * both fit together. */
#include <string.h>

#include "api/api.h"
#include "runtime/state/session_state.h"

const ImportModel *
import_model(const llmc_model *m, Arena *arena)
{
	ImportModel *of = m ? NEW(arena, ImportModel, 1) : NULL;

	if (m)
		*of = (ImportModel){ m->spec, m->weights };
	return of;
}

/* Return the layers of the model whose inputs the draft reads. */
static int
layers_read(const Spec *draft, const Spec *of, int out[MAX_MTP_FROM])
{
	/* the default of EAGLE-3 (arXiv 2503.01840) */
	const int usual[] = { 2, of->n_layers / 2, of->n_layers - 3 };
	const bool own = draft->mtp.n_from > 0;
	const int n = own ? draft->mtp.n_from : 3;

	memcpy(out, own ? draft->mtp.from : usual, (size_t)n * sizeof *out);
	return n;
}

static llmc_status
check_fit(const Spec *draft, const Spec *of, llmc_error *err)
{
	int layer[MAX_MTP_FROM], n = layers_read(draft, of, layer);

	if (draft->vocab_size != of->vocab_size)
		return error_set(err, LLMC_E_INPUT,
		                 "the draft checkpoint %s is for a model with %lld tokens, %s has "
		                 "%lld",
		                 draft->name, (long long)draft->vocab_size, of->name,
		                 (long long)of->vocab_size);
	for (int i = 0; i < n; i++)
		if (layer[i] < 0 || layer[i] > of->n_layers)
			return error_set(err, LLMC_E_INPUT,
			                 "the draft checkpoint %s reads the hidden states at the "
			                 "input of layer %d, and %s has %d layers",
			                 draft->name, layer[i], of->name, of->n_layers);
	if (draft->mtp.width != n * of->hidden)
		return error_set(err, LLMC_E_INPUT,
		                 "the draft checkpoint %s reads rows of %lld elements, and the "
		                 "hidden states of %d layers of %s have %lld (hidden size %lld)",
		                 draft->name, (long long)draft->mtp.width, n, of->name,
		                 (long long)(n * of->hidden), (long long)of->hidden);
	return LLMC_OK;
}

llmc_status
model_check_draft(const llmc_model *m, const llmc_model *draft, llmc_error *err)
{
	const Spec *own = m->spec;
	int layer[MAX_MTP_FROM], n = layers_read(draft->spec, own, layer);

	TRY(check_fit(draft->spec, own, err));
	if (!m->plan->outputs_rows || own->mtp.part != MTP_ROWS || own->mtp.n_from != n ||
	    memcmp(own->mtp.from, layer, (size_t)n * sizeof *layer) != 0 ||
	    plan_rows_width(m->plan) != draft->plan->draft.own_at)
		return error_set(err, LLMC_E_INPUT,
		                 "%s does not output the rows that the draft checkpoint %s reads. "
		                 "Open it with the draft (llmc_options.draft).",
		                 own->name, draft->spec->name);
	return LLMC_OK;
}

llmc_status
model_add_draft(llmc_model *m, const char *path, SourceKind kind, const llmc_options *opt,
                llmc_error *err)
{
	const char *from = NULL;
	const Spec *draft;
	SourceKind what;
	int layer[MAX_MTP_FROM];

	if (!opt->draft)
		return LLMC_OK;
	if (strcmp(opt->draft, "mtp") != 0) {
		TRY(source_kind(opt->draft, &what, err));
		const ImportOptions io = { .of = import_model(m, &m->arena),
			                   .allow_unknown_keys = opt->allow_unknown_keys };
		TRY(source_spec(opt->draft, what, NULL, NULL, &io, &m->arena, NULL, NULL, &draft,
		                err));
		/* not a draft checkpoint but a whole model: nothing to check */
		if (draft->mtp.part != MTP_DRAFT)
			return LLMC_OK;
		TRY(check_fit(draft, m->spec, err));
		const int n = layers_read(draft, m->spec, layer);
		for (int i = 0; i < n; i++)
			from = arena_printf(&m->arena, "%s%s%d", i ? from : "mtp.from=[",
			                    i ? ", " : "", layer[i]);
		from = arena_printf(&m->arena, "%s]", from);
	}
	m->set = set_with(m->set, "mtp.part=rows", &m->arena);
	if (from)
		m->set = set_with(m->set, from, &m->arena);
	const ImportOptions own = { .mmproj = m->mmproj,
		                    .allow_unknown_keys = opt->allow_unknown_keys };
	return source_spec(path, kind, m->set, opt->weights, &own, &m->arena, NULL, NULL, &m->spec,
	                   err);
}

const int32_t *
llmc_draft_tokens(const llmc_model *m, size_t *n)
{
	*n = m->rt && m->rt->draft_token ? (size_t)plan_out_width(m->plan) : 0;
	return *n ? m->rt->draft_token : NULL;
}
