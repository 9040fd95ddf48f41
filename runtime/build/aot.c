/* Kernels built ahead of time: artifact/aot/<name>/ has one file per unit and a manifest with the
 * inputs of each. A file fits if its source, headers, flags and ABI are the current ones; the
 * compiler may differ. Units that do not fit are compiled as if nothing had been shipped, and one
 * log line reports it. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "runtime/build/kernel_build.h"

enum { MANIFEST = 1, MAX_MANIFEST_BYTES = 16 << 20 };

static void
shipped_dir(const char *artifact, const char *name, Strbuf *dir)
{
	file_join(dir, artifact, "aot/");
	strbuf_puts(dir, name);
}

/* "kernels/head.1f3a.c" ships as head.1f3a.so, "runtime/begin.cu" as runtime-begin.cubin. */
static void
set_path(KernelBuild *b, int unit, const char *dir)
{
	const char *file = b->unit[unit].file,
	           *base = strncmp(file, "kernels/", 8) ? file : file + 8,
	           *dot = strrchr(base, '.');
	char name[300];
	int n = snprintf(name, sizeof name, "%.*s.%s",
	                 (int)(dot && dot > base ? dot - base : (long)strlen(base)), base,
	                 b->kind->suffix);

	for (int i = 0; i < n && i < (int)sizeof name; i++)
		if (name[i] == '/')
			name[i] = '-';
	file_join(&b->unit[unit].entry.path, dir, name);
}

static llmc_status
check_dir(const char *artifact, const char *name, llmc_error *err)
{
	char file[64];

	snprintf(file, sizeof file, "aot/%s/", name);
	return build_check_folders(artifact, file, err);
}

/* Read the manifest. NULL: nothing in the folder can be used, and *why holds the reason. */
static json_t *
read_manifest(const char *dir, llmc_error *why)
{
	Strbuf path = { 0 };
	json_t *m = NULL;
	Strbuf text = { 0 };

	file_join(&path, dir, "manifest.json");
	if (path.failed) {
		error_set(why, LLMC_E_MEMORY, "out of memory");
	} else if (!file_exists(strbuf_str(&path))) {
		error_set(why, LLMC_E_CHECK, "the manifest is missing");
	} else if (file_check_trusted(strbuf_str(&path), why) == LLMC_OK) {
		if (file_read(strbuf_str(&path), MAX_MANIFEST_BYTES, &text, why) == LLMC_OK)
			m = json_parse(strbuf_str(&text), text.len, JSON_REJECT_DUPLICATES, NULL,
			               NULL);
		strbuf_release(&text);
		long long version = json_integer_value(json_object_get(m, "manifest"));
		long long abi = json_integer_value(json_object_get(m, "step_abi"));
		if (m && version == MANIFEST && abi == PLAN_STEP_ABI) {
			strbuf_release(&path);
			return m;
		}
		if (!m || version != MANIFEST)
			error_set(why, LLMC_E_CHECK, "the manifest cannot be read");
		else
			error_set(why, LLMC_E_CHECK, "their kernel ABI is %lld, this llmc has %d",
			          abi, PLAN_STEP_ABI);
	}
	json_decref(m);
	strbuf_release(&path);
	return NULL;
}

void
build_shipped(KernelBuild *b, const char *name, const char *unfit)
{
	Strbuf dir = { 0 };
	llmc_error why = { 0 };
	json_t *m = NULL;
	int fit = 0;

	shipped_dir(b->opt.artifact, name, &dir);
	if (dir.failed || b->opt.skip_built || !file_is_dir(strbuf_str(&dir)))
		goto done; /* nothing was shipped */
	if (unfit)
		error_set(&why, LLMC_E_CHECK, "%s", unfit);
	else if (check_dir(b->opt.artifact, name, &why) == LLMC_OK)
		m = read_manifest(strbuf_str(&dir), &why);
	for (int i = 0; m && i < b->n_unit; i++) {
		BuildUnit *u = &b->unit[i];
		const char *source =
		    json_string_value(json_object_get(json_object_get(m, "source"), u->file));
		set_path(b, i, strbuf_str(&dir));
		if (u->entry.path.failed)
			error_set(&why, LLMC_E_MEMORY, "out of memory");
		else if (!source || strcmp(source, u->key))
			error_set(&why, LLMC_E_CHECK,
			          "%s was built from another source or with other %s",
			          strrchr(strbuf_str(&u->entry.path), '/') + 1, b->kind->with);
		else
			u->ready = checked_read(strbuf_str(&u->entry.path), b->kind->mark, u->key,
			                        b->kind->contents(b->target, i), &why) == LLMC_OK;
		fit += u->ready;
	}
	if (fit < b->n_unit)
		log_line(b->opt.log, b->opt.log_user, LLMC_LOG_WARNING,
		         "%s: %d of %d kernels built ahead of time cannot be used (%s): they are "
		         "compiled here",
		         strbuf_str(&dir), b->n_unit - fit, b->n_unit, why.text);
done:
	json_decref(m);
	strbuf_release(&dir);
}

bool
build_ships(const char *artifact, const char *name)
{
	Strbuf dir = { 0 };

	shipped_dir(artifact, name, &dir);
	strbuf_puts(&dir, "/manifest.json");
	bool there = !dir.failed && file_exists(strbuf_str(&dir));
	strbuf_release(&dir);
	return there;
}

static llmc_status
write_manifest(const KernelBuild *b, const char *dir, const char *compiler, const char *arch,
               llmc_error *err)
{
	Strbuf path = { 0 };
	llmc_status status = LLMC_E_MEMORY;
	json_t *source = json_object(),
	       *m = json_pack("{s:i, s:i, s:s, s:s, s:s*}", "manifest", MANIFEST, "step_abi",
	                      PLAN_STEP_ABI, "target", b->plan->target, "compiler", compiler,
	                      "arch", arch);
	bool ok = source && m;

	if (ok && b->plan->rank > 0) { /* ranks share the folder: keep what earlier ranks shipped */
		llmc_error why;
		json_t *before = read_manifest(dir, &why);
		ok = !before || json_object_update(source, json_object_get(before, "source")) == 0;
		json_decref(before);
	}
	for (int i = 0; ok && i < b->n_unit; i++)
		ok = json_object_set_new(source, b->unit[i].file, json_string(b->unit[i].key)) == 0;
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
build_ship(KernelBuild *b, const char *name, const char *compiler, const char *arch,
           llmc_error *err)
{
	Strbuf dir = { 0 };
	llmc_status status;

	b->shipping = true;
	shipped_dir(b->opt.artifact, name, &dir);
	TRY_GOTO(file_mkdirs(strbuf_str(&dir), err));
	build_sweep(strbuf_str(&dir));
	for (int i = 0; i < b->n_unit; i++)
		set_path(b, i, strbuf_str(&dir));
	build_start(b, arch ? arch : name, compiler);
	TRY_GOTO(build_wait(b, err));
	TRY_GOTO(write_manifest(b, strbuf_str(&dir), compiler, arch, err));
fail:
	strbuf_release(&dir);
	return status;
}
