/* Kernels built ahead of time: artifact/aot/<target>/<name>.so and a manifest that says what each was made from. An object
 * fits when its source, headers, flags and ABI are those of now; the compiler may be another. What does not fit is
 * compiled as if nothing had been shipped, and that is said in one line. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu/build.h"

enum { MANIFEST = 1 };

static void
aot_dir(const Kernels *k, Strbuf *dir)
{
	file_join(dir, k->opt.artifact, "aot/");
	strbuf_puts(dir, k->plan->target);
}

/* Name of a unit's object: its file without folders and ".c". */
static void
object_name(const Unit *u, char *name, size_t cap)
{
	const char *slash = strrchr(u->file, '/'), *base = slash ? slash + 1 : u->file, *dot = strrchr(base, '.');

	snprintf(name, cap, "%.*s.so", (int)(dot && dot > base ? dot - base : (long)strlen(base)), base);
}

void
aot_use(Kernels *k)
{
	Strbuf dir = { 0 }, path = { 0 };
	char name[256];
	json_t *m = NULL;
	int fit = 0, n_manifest = 0;
	llmc_error why = { 0 };
	json_error_t at;

	aot_dir(k, &dir);
	file_join(&path, strbuf_str(&dir), "manifest.json");
	if (dir.failed || path.failed || !file_is_dir(strbuf_str(&dir)))
		goto done; /* nothing was shipped */
	if (!file_exists(strbuf_str(&path)))
		snprintf(why.text, sizeof why.text, "the manifest is missing");
	else if (file_check_trusted(strbuf_str(&path), &why) == LLMC_OK) {
		m = json_load_file(strbuf_str(&path), JSON_REJECT_DUPLICATES, &at);
		const json_t *v = json_object_get(m, "manifest"), *abi = json_object_get(m, "step_abi");
		if (!m || json_integer_value(v) != MANIFEST)
			snprintf(why.text, sizeof why.text, "the manifest cannot be read");
		else if (json_integer_value(abi) != PLAN_STEP_ABI)
			snprintf(why.text, sizeof why.text, "they have ABI %lld, this llmc has %d", (long long)json_integer_value(abi),
			         PLAN_STEP_ABI);
		else
			n_manifest = 1;
	}
	for (int i = 0; n_manifest && i < k->n_unit; i++) {
		Unit *u = &k->unit[i];
		const char *source = json_string_value(json_object_get(json_object_get(m, "source"), u->file));
		object_name(u, name, sizeof name);
		file_join(&u->object, strbuf_str(&dir), name);
		if (!source || strcmp(source, u->source_key))
			snprintf(why.text, sizeof why.text, "%s was built from another source or with other flags", name);
		else if (object_check(strbuf_str(&u->object), u->source_key, &why) == LLMC_OK)
			u->ready = true;
		fit += u->ready;
	}
	if (fit < k->n_unit)
		kernels_say(k, LLMC_LOG_WARNING, "%s: %d of %d kernels built ahead of time cannot be used (%s): they are compiled here",
		            strbuf_str(&dir), k->n_unit - fit, k->n_unit, why.text);
done:
	json_decref(m);
	strbuf_release(&dir);
	strbuf_release(&path);
}

static llmc_status
write_manifest(const Kernels *k, const char *dir, llmc_error *err)
{
	Strbuf path = { 0 };
	llmc_status status = LLMC_E_MEMORY;
	json_t *source = json_object(), *m = json_pack("{s:i, s:i, s:s, s:s}", "manifest", MANIFEST, "step_abi",
	                                              PLAN_STEP_ABI, "target", k->plan->target, "compiler", k->cc_version);
	bool ok = source && m;

	for (int i = 0; ok && i < k->n_unit; i++)
		ok = json_object_set_new(source, k->unit[i].file, json_string(k->unit[i].source_key)) == 0;
	ok = ok && json_object_set(m, "source", source) == 0;
	char *text = ok ? json_dumps(m, JSON_INDENT(1) | JSON_SORT_KEYS) : NULL;
	file_join(&path, dir, "manifest.json");
	if (text && !path.failed)
		status = file_write(strbuf_str(&path), text, strlen(text), err);
	else
		error_set(err, LLMC_E_MEMORY, "out of memory");
	free(text);
	json_decref(source);
	json_decref(m);
	strbuf_release(&path);
	return status;
}

llmc_status
kernels_ship(const Plan *plan, const KernelOptions *opt, llmc_error *err)
{
	Strbuf dir = { 0 };
	Kernels *k;
	llmc_status status;
	char name[256];

	TRY(kernels_prepare(plan, opt, &k, err));
	aot_dir(k, &dir);
	TRY_GOTO(cc_find(k->cc, sizeof k->cc, k->cc_version, sizeof k->cc_version, err));
	TRY_GOTO(file_mkdirs(strbuf_str(&dir), err));
	for (int i = 0; i < k->n_unit; i++) {
		object_name(&k->unit[i], name, sizeof name);
		file_join(&k->unit[i].object, strbuf_str(&dir), name);
	}
	TRY_GOTO(kernels_compile(k, err));
	TRY_GOTO(write_manifest(k, strbuf_str(&dir), err));
fail:
	strbuf_release(&dir);
	kernels_close(k);
	return status;
}
