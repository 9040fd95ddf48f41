/* llmc_import and llmc_compile: the compiler without weights. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/sized_struct.h"
#include "base/text.h"

llmc_status
llmc_import(const char *src, const llmc_options *opt, char **yaml_out, llmc_error *err)
{
	Arena arena;
	SourceKind kind;
	llmc_error own = { 0 };
	char *volatile yaml = NULL;
	const ImportOptions io = { .tower = opt && opt->tower,
		                   .allow_unknown_keys = opt && opt->allow_unknown_keys,
		                   .mmproj = opt ? opt->mmproj : NULL };

	*yaml_out = NULL;
	TRY(source_kind(src, &kind, err));
	if (kind == SOURCE_YAML || kind == SOURCE_ARTIFACT)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: is a description already; import reads a Hugging Face "
		                 "folder, a GGUF file or a FastLLM model",
		                 src);
	arena_init(&arena);
	if (setjmp(arena.oom)) {
		arena_release(&arena);
		return error_set(err, LLMC_E_MEMORY, "%s: out of memory while importing it", src);
	}
	Diag *const d = NEW(&arena, Diag, 1);
	diag_init(d, &arena);
	if (!setjmp(d->bug))
		yaml = import_yaml(src, &io, d, &arena, &own);
	llmc_status s = LLMC_OK;
	if (!yaml) {
		s = own.code ? error_set(err, own.code, "%s", own.text) : diag_error(d, err);
	} else {
		if (opt)
			log_text(opt->log, opt->log_user, LLMC_LOG_WARNING, strbuf_str(&d->text));
		*yaml_out = strdup(yaml);
		if (!*yaml_out)
			s = error_set(err, LLMC_E_MEMORY, "out of memory");
	}
	arena_release(&arena);
	return s;
}

enum { MAX_TARGETS = 32 }; /* more than the number of targets */

/* Split "v3,v4" into target names; NULL: the target of this processor */
static llmc_status
targets(const llmc_compile_options *o, char name[MAX_TARGETS][32], size_t *n, llmc_error *err)
{
	const char *p = o->arch;
	size_t len;

	*n = 0;
	if (!p)
		return target_name(o->target, NULL, false, name[(*n)++], err);
	for (const char *at; (at = text_item(&p, &len)) != NULL;) {
		char word[32];
		if (*n == MAX_TARGETS)
			return error_set(err, LLMC_E_INPUT, "--arch %s: at most %d are allowed",
			                 o->arch, MAX_TARGETS);
		if (len == 0 || len >= sizeof word)
			return error_set(err, LLMC_E_INPUT,
			                 "--arch %s: expected a list such as v3,v4", o->arch);
		memcpy(word, at, len);
		word[len] = 0;
		TRY(target_name(o->target, word, false, name[(*n)++], err));
	}
	return LLMC_OK;
}

/* Record that this user has made the folder. A folder with unknown files is not recorded; the next
 * open names the file. */
static void
trust_target(const Compiled *const *made, size_t ranks, const char *target, const char *dir,
             const llmc_compile_options *o, Arena *arena)
{
	const char **file = NEW(arena, const char *, ranks);
	const Plan **plan = NEW(arena, const Plan *, ranks);
	TrustPlans t = { (int)ranks, file, plan };
	llmc_error why = { 0 };

	if (target_find(target)->kind == TARGET_REF)
		return;
	for (size_t i = 0; i < ranks; i++) {
		plan[i] = made[i]->plan;
		for (size_t k = 0; k < made[i]->n_file; k++)
			if (ends_with(made[i]->file[k].path, ".json"))
				file[i] = made[i]->file[k].path;
	}
	if (artifact_compare(dir, made, ranks, arena, &why) != LLMC_OK) {
		log_text(o->log, o->log_user, LLMC_LOG_WARNING, why.text);
		return;
	}
	const char *built[2];
	int n_built = 0;
	if (o->aot)
		built[n_built++] = target_built_name(target);
	if (o->aot && made[0]->plan->partitions > 1) /* also build kernels of the part on the CPU */
		built[n_built++] = target_built_name(plan[1]->target);
	artifact_mark_trusted(dir, &t, built, n_built, arena, o->log, o->log_user);
}

static llmc_status
compile_into(const char *yaml, const char *dir, const llmc_compile_options *o, Arena *arena,
             llmc_error *err)
{
	char name[MAX_TARGETS][32];
	size_t n;
	SourceKind kind;
	Strbuf *dump = arena_strbuf(arena);

	TRY(targets(o, name, &n, err));
	TRY(source_kind(yaml, &kind, err));
	const Spec *spec;
	const ImportOptions io = { .allow_unknown_keys = o->allow_unknown_keys };
	TRY(source_spec(yaml, kind, o->set, NULL, &io, arena, o->log, o->log_user, &spec, err));
	char cpu[32] = "";
	const bool split = compile_partitions(spec, name[0], 0) > 1;
	const size_t ranks = split ? 2 : (size_t)spec_ranks(spec);
	if (split)
		TRY(target_name("cpu", NULL, false, cpu, err));
	const Compiled **done = NEW(arena, const Compiled *, n *ranks);
	for (size_t i = 0; i < n * ranks; i++) {
		Compiled *volatile c = NULL;
		Diag *const d = NEW(arena, Diag, 1);
		diag_init(d, arena);
		if (!setjmp(d->bug))
			c = i == 0 ? compile_spec(spec, name[0], o->dump, dump, d, arena)
			           : compile_rank(spec, split && i % 2 ? cpu : name[i / ranks],
			                          (int)(i % ranks), true, d, arena);
		if (!c)
			return diag_error(d, err);
		if (i % ranks == 0)
			log_text(o->log, o->log_user, LLMC_LOG_WARNING, strbuf_str(&d->text));
		done[i] = c;
	}
	if (o->dump) {
		*o->dump_out = dump->failed ? NULL : strdup(strbuf_str(dump));
		return *o->dump_out ? LLMC_OK : error_set(err, LLMC_E_MEMORY, "out of memory");
	}
	TRY(artifact_write(done, n * ranks, dir, err));
	for (size_t i = 0; o->aot && i < n * ranks; i++)
		if (target_find(name[i / ranks])->kind != TARGET_REF)
			TRY(runtime_build_aot(done[i]->plan, dir, o->log, o->log_user, err));
	for (size_t i = 0; i < n; i++)
		trust_target(done + i * ranks, ranks, name[i], dir, o, arena);
	return LLMC_OK;
}

llmc_status
llmc_compile(const char *yaml_path, const char *out_dir, const llmc_compile_options *opt,
             llmc_error *err)
{
	llmc_compile_options o = LLMC_INIT(llmc_compile_options);
	llmc_error own = { 0 };
	Arena arena;
	llmc_status s;

	SIZED_TAKE(o, opt);
	if (o.dump && !o.dump_out)
		return error_set(err, LLMC_E_RANGE, "dump without dump_out");
	if (!o.dump && (!out_dir || !*out_dir))
		return error_set(err, LLMC_E_INPUT, "no folder given to write the artifact to");
	arena_init(&arena);
	if (setjmp(arena.oom))
		s = error_set(&own, LLMC_E_MEMORY, "%s: out of memory while compiling it",
		              yaml_path);
	else
		s = compile_into(yaml_path, out_dir, &o, &arena, &own);
	if (s != LLMC_OK && err)
		*err = own;
	arena_release(&arena);
	return s;
}
