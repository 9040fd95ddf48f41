/* Draft checkpoints (mtp.part: draft). The embedding and the output matrix may be missing. They are
 * then taken from the checkpoint of the model, under names that begin with '@'. */
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "compiler/import/import.h"
#include "compiler/import/import_check.h"
#include "formats/flm.h"

static bool
is_draft(const ImportSource *s)
{
	const char *part = s->value[K_mtp_part] ? s->value[K_mtp_part] : family_word(s, K_mtp_part);

	return part && strcmp(part, "draft") == 0;
}

/* Read the list of tensors of the model's checkpoint. */
static bool
read_model(ImportSource *m, llmc_error *err)
{
	if (flm_name(m->path)) {
		err_at(m->d, (Loc){ 0 },
		       "%s: a draft checkpoint without an embedding takes it from a Hugging Face "
		       "folder or a GGUF file, not from a FastLLM model",
		       m->path);
		return false;
	}
	m->file = m->path;
	m->format = "hf";
	return file_is_dir(m->path) || ends_with(m->path, ".safetensors") ||
	               ends_with(m->path, ".json")
	           ? source_take_weights(m, err)
	           : source_read_gguf(m, err);
}

/* Return the name of the tensor with this role in the model; NULL: the model stores the role in
 * another form. */
static const char *
name_in_model(ImportSource *s, const char *role)
{
	const Spec *of = s->of->spec;
	const TensorRule *r = rule_for(of->tensor_rule, of->n_tensor_rule,
	                               strcmp(role, "head") == 0 && of->head.tied ? "embed" : role);

	if (!r || strchr(r->role, '+') || r->transpose || r->per_head || r->quarters ||
	    (strcmp(role, "head") == 0 && of->head.row_norm) || spec_narrow(of))
		return NULL;
	return rule_name_in(s->a, of, r, -1, -1, ".weight");
}

/* Add the model's tensor for a role to the source. *from: tensors of the model, which are read
 * once */
static bool
take_from_model(ImportSource *s, const char *role, ImportSource **from, llmc_error *err)
{
	const char *name = s->of ? name_in_model(s, role) : NULL, *names = s->value[K_tensors];
	double hidden;

	if (!s->of || !s->of->weights) {
		err_at(s->d, (Loc){ 0 },
		       "%s: this draft checkpoint has no %s of its own: it can only be opened "
		       "together with its model and the model's weights (--draft)",
		       s->file, strcmp(role, "head") == 0 ? "output matrix" : "embedding");
		return false;
	}
	if (!*from) {
		ImportSource *m = NEW(s->a, ImportSource, 1);
		*m = (ImportSource){ .d = s->d, .a = s->a, .path = s->of->weights };
		if (!read_model(m, err))
			return false;
		*from = m;
	}
	const SourceTensor *t = name ? source_tensor(*from, name) : NULL;
	if (!t || !number_parse(s->value[K_hidden], &hidden) ||
	    (int64_t)hidden != s->of->spec->hidden) {
		err_at(
		    s->d, (Loc){ 0 },
		    "%s: this draft checkpoint has no %s of its own, and that of %s does not fit: "
		    "%s",
		    s->file, strcmp(role, "head") == 0 ? "output matrix" : "embedding",
		    s->of->spec->name,
		    t ? "its hidden size differs" : "it is stored in another form");
		return false;
	}
	SourceTensor *all = NEW(s->a, SourceTensor, s->n_tensor + 2);
	memcpy(all, s->tensor, s->n_tensor * sizeof *all);
	all[s->n_tensor] = *t;
	all[s->n_tensor].data = NULL; /* its file is closed */
	all[s->n_tensor++].name = arena_printf(s->a, "@%s", t->name);
	s->tensor = all;
	source_sort(s);
	source_set(s, K_tensors,
	           arena_printf(s->a, "%.*s%s%s: \"/@%s\"}", names ? (int)strlen(names) - 1 : 0,
	                        names ? names : "", names ? ", " : "{", role, name));
	source_set(s, K_mtp_model, spec_quote(s->a, file_absolute(s->a, s->of->weights)));
	return true;
}

/* Return whether the draft checkpoint has a tensor for this role. */
static bool
has_own(const ImportSource *s, const char *role)
{
	const char *name = family_tensor(s, role);

	return name && source_tensor(s, arena_printf(s->a, "%s.weight", name + (*name == '/')));
}

bool
import_add_model(ImportSource *s, llmc_error *err)
{
	static const char *const role[] = { "embed", "head" };
	ImportSource *from = NULL;
	const Spec *of = s->of ? s->of->spec : NULL;
	bool ok = true;
	double own;

	if (!is_draft(s) || s->d->n_error)
		return s->d->n_error == 0;
	if (of && s->value[K_vocab_size] && number_parse(s->value[K_vocab_size], &own) &&
	    (int64_t)own != of->vocab_size) {
		err_at(s->d, (Loc){ 0 },
		       "%s: this draft checkpoint is for a model with %.0f tokens, %s has %lld",
		       s->file, own, of->name, (long long)of->vocab_size);
		return false;
	}
	/* Drafts are trained on short sequences. The runtime measures their acceptance at later
	 * positions. */
	if (of && s->value[K_max_positions] && number_parse(s->value[K_max_positions], &own) &&
	    (int64_t)own < of->max_positions)
		source_set_num(s, K_max_positions, (double)of->max_positions);
	const bool tied = s->value[K_tied] && strcmp(s->value[K_tied], "true") == 0;
	for (size_t i = 0; ok && s->have_tensors && i < sizeof role / sizeof *role; i++)
		if (!has_own(s, role[i]) && !(i == 1 && tied) &&
		    !take_from_model(s, role[i], &from, err))
			ok = false;
	if (from)
		source_close_weights(from); /* only names and shapes of its tensors are needed */
	return ok;
}

void
import_draft_roles(ImportCheck *c)
{
	const Spec *s = c->spec;
	const TensorRule *r = rule_for(s->tensor_rule, s->n_tensor_rule, "mtp_tokens");
	SourceTensor *t;

	if (s->mtp.part != MTP_DRAFT || strcmp(s->mtp.tokens, "none") == 0)
		return;
	if (!r || !(t = source_tensor(c->s, r->name))) {
		err_at(c->s->d, (Loc){ 0 },
		       "%s: tensor %s is missing: it names the tokens of this draft checkpoint",
		       c->s->path, r ? r->name : "mtp_tokens");
		return;
	}
	t->used = true;
	if ((t->dtype != DT_I64 && t->dtype != DT_I32) || t->n_dims != 1 ||
	    t->dim[0] != spec_head_rows(s))
		err_at(c->s->d, (Loc){ 0 },
		       "%s: tensor %s must hold %lld integers, one for each row of the output "
		       "matrix",
		       c->s->path, t->name, (long long)spec_head_rows(s));
}
