/* Images built ahead of time: artifact/aot/sm_XX/<name>.cubin and a manifest that says what each was made from. An image
 * fits when its source, headers and options are those of now and the device runs its architecture. What does not fit is
 * compiled as if nothing had been shipped, and that is said in one line. */
#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "runtime/cuda/build.h"

enum { MANIFEST = 1 };

static void
aot_dir(const CudaBuild *b, const char *arch, Strbuf *dir)
{
	file_join(dir, b->opt.artifact, "aot/");
	strbuf_puts(dir, arch);
}

/* Name of a unit's image: its file without folders and ".cu". */
static void
image_name(const CudaUnit *u, char *name, size_t cap)
{
	const char *slash = strrchr(u->name, '/'), *base = slash ? slash + 1 : u->name, *dot = strrchr(base, '.');

	snprintf(name, cap, "%s%.*s.cubin", u->own ? "runtime-" : "", (int)(dot && dot > base ? dot - base : (long)strlen(base)), base);
}

void
cuda_aot_use(CudaBuild *b)
{
	Strbuf dir = { 0 }, path = { 0 };
	char name[300], key[65];
	json_t *m = NULL;
	int fit = 0;
	bool usable = false;
	llmc_error why = { 0 };
	json_error_t at;

	aot_dir(b, b->plan_arch, &dir);
	file_join(&path, strbuf_str(&dir), "manifest.json");
	if (dir.failed || path.failed || !file_is_dir(strbuf_str(&dir)))
		goto done; /* nothing was shipped */
	if (!cuda_image_fits(b->plan_arch, b->opt.cc)) {
		snprintf(why.text, sizeof why.text, "they are for %s, this GPU is sm_%d", b->plan_arch, b->opt.cc);
	} else if (!file_exists(strbuf_str(&path))) {
		snprintf(why.text, sizeof why.text, "the manifest is missing");
	} else if (file_check_trusted(strbuf_str(&path), &why) == LLMC_OK) {
		m = json_load_file(strbuf_str(&path), JSON_REJECT_DUPLICATES, &at);
		const json_t *abi = json_object_get(m, "step_abi");
		if (!m || json_integer_value(json_object_get(m, "manifest")) != MANIFEST)
			snprintf(why.text, sizeof why.text, "the manifest cannot be read");
		else if (json_integer_value(abi) != PLAN_STEP_ABI)
			snprintf(why.text, sizeof why.text, "they have ABI %lld, this llmc has %d", (long long)json_integer_value(abi),
			         PLAN_STEP_ABI);
		else
			usable = true;
	}
	for (int i = 0; usable && i < b->n_unit; i++) {
		CudaUnit *u = &b->unit[i];
		const char *source = json_string_value(json_object_get(json_object_get(m, "source"), u->name));
		cuda_source_key(&u->source, b->plan_arch, key);
		image_name(u, name, sizeof name);
		file_join(&path, strbuf_str(&dir), name);
		if (!source || strcmp(source, key))
			snprintf(why.text, sizeof why.text, "%s was built from another source or with other options", name);
		else if (cubin_read(strbuf_str(&path), key, &u->image, &why) == LLMC_OK)
			u->ready = u->shipped = true;
		fit += u->ready;
	}
	if (fit < b->n_unit)
		cuda_build_say(b, LLMC_LOG_WARNING, "%s: %d of %d kernels built ahead of time cannot be used (%s): they are compiled here",
		               strbuf_str(&dir), b->n_unit - fit, b->n_unit, why.text);
done:
	json_decref(m);
	strbuf_release(&dir);
	strbuf_release(&path);
}

llmc_status
cuda_aot_lacks(const CudaBuild *b, const llmc_error *why, llmc_error *err)
{
	Strbuf dir = { 0 }, have = { 0 };

	file_join(&dir, b->opt.artifact, "aot");
	DIR *d = opendir(strbuf_str(&dir));
	for (struct dirent *e; d && (e = readdir(d)) != NULL;)
		if (!strncmp(e->d_name, "sm_", 3))
			strbuf_printf(&have, "%s%s", have.len ? ", " : "", e->d_name);
	if (d)
		closedir(d);
	error_set(err, LLMC_E_MISSING,
	          "kernels for sm_%d (%s) have to be compiled: %s ships %s%s. %s. Or ship kernels that fit, where NVRTC is: llmc compile "
	          "MODEL.yaml --target cuda --aot --arch %s",
	          b->opt.cc, b->opt.device_name ? b->opt.device_name : "the GPU", b->opt.artifact,
	          have.len ? "kernels for " : "none", strbuf_str(&have), why->text,
	          cuda_best_target(b->opt.cc) ? cuda_best_target(b->opt.cc) + 5 : b->plan_arch);
	strbuf_release(&dir);
	strbuf_release(&have);
	return LLMC_E_MISSING;
}

static llmc_status
write_manifest(const CudaBuild *b, const char *dir, llmc_error *err)
{
	Strbuf path = { 0 };
	char nvrtc[32];
	llmc_status status = LLMC_E_MEMORY;

	snprintf(nvrtc, sizeof nvrtc, "NVRTC %d.%d", b->nvrtc.major, b->nvrtc.minor);
	json_t *source = json_object(), *m = json_pack("{s:i, s:i, s:s, s:s, s:s}", "manifest", MANIFEST, "step_abi",
	                                              PLAN_STEP_ABI, "target", b->plan->target, "arch", b->arch, "compiler", nvrtc);
	bool ok = source && m;
	for (int i = 0; ok && i < b->n_unit; i++)
		ok = json_object_set_new(source, b->unit[i].name, json_string(b->unit[i].key)) == 0;
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
cuda_build_ship(const Plan *plan, const CudaBuildOptions *opt, llmc_error *err)
{
	CudaBuildOptions o = *opt;
	Strbuf dir = { 0 };
	CudaBuild *b;
	llmc_status status;
	char name[300];

	o.cc = o.driver = 0;
	o.device_name = NULL;
	TRY(cuda_build_prepare(plan, &o, &b, err));
	TRY_GOTO(nvrtc_open(&b->nvrtc, 0, err));
	aot_dir(b, b->arch, &dir);
	TRY_GOTO(file_mkdirs(strbuf_str(&dir), err));
	for (int i = 0; i < b->n_unit; i++) {
		image_name(&b->unit[i], name, sizeof name);
		file_join(&b->unit[i].path, strbuf_str(&dir), name);
	}
	TRY_GOTO(cuda_build_compile(b, err));
	TRY_GOTO(cuda_build_wait(b, err));
	TRY_GOTO(write_manifest(b, strbuf_str(&dir), err));
fail:
	strbuf_release(&dir);
	cuda_build_close(b);
	return status;
}
