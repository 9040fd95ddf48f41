/* llmc plan --html: writes the plan as one self-contained page: cli/plan.html with the data as
 * JSON. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/embed.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/plan_html.h"

void
plan_html_forget(const char *folder)
{
	file_remove_tree(folder);
}

/* Write the sources of the kernels by their names in the plan: {"kernels/x.c": "..."} */
static void
put_sources(FILE *f, const llmc_model *m, const char *folder)
{
	const char *plan_text = llmc_plan_json(m);
	json_t *plan = json_parse(plan_text, strlen(plan_text), 0, NULL, NULL), *kernel,
	       *seen = json_object();
	bool first = true;
	size_t i;

	fputc('{', f);
	json_array_foreach (json_object_get(plan, "kernel"), i, kernel) {
		const char *name = json_string_value(json_object_get(kernel, "file"));
		Strbuf path = { 0 }, text = { 0 };
		if (!name || json_object_get(seen, name))
			continue;
		json_object_set_new(seen, name, json_true());
		file_join(&path, folder, name);
		if (file_read(strbuf_str(&path), 1 << 24, &text, NULL) == LLMC_OK) {
			fputs(first ? "" : ",", f);
			json_text(f, name, strlen(name));
			fputc(':', f);
			json_text(f, strbuf_str(&text), text.len);
			first = false;
		}
		strbuf_release(&path);
		strbuf_release(&text);
	}
	fputc('}', f);
	json_decref(plan);
	json_decref(seen);
}

static char *
data_of(const llmc_model *m, const llmc_memory *mem, const llmc_gpu *gpu, const char *folder)
{
	const char *yaml = llmc_model_yaml(m);
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return NULL;
	fprintf(
	    f,
	    "{\"memory\":{\"weights\":%lld,\"kv\":%lld,\"scratch\":%lld,\"state\":%lld},\"gpu\":",
	    (long long)mem->weights, (long long)mem->kv, (long long)mem->scratch,
	    (long long)mem->state);
	if (gpu) {
		fputs("{\"title\":", f);
		json_text(f, gpu->title, strlen(gpu->title));
		fprintf(f, ",\"bandwidth\":%.0f,\"peak\":%.0f}", gpu->bandwidth, gpu->peak);
	} else {
		fputs("null", f);
	}
	fputs(",\"source\":", f);
	put_sources(f, m, folder);
	fputs(",\"yaml\":", f);
	json_text(f, yaml, strlen(yaml));
	fprintf(f, ",\"plan\":%s}", llmc_plan_json(m));
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

llmc_status
plan_html(const char *path, const llmc_model *m, const llmc_memory *mem, const llmc_gpu *gpu,
          const char *folder, llmc_error *err)
{
	static const char mark[] = "@DATA@";
	const char *page = embed_find("cli/plan.html", NULL), *at = strstr(page, mark);
	char *data = data_of(m, mem, gpu, folder);
	FILE *f = data ? strcmp(path, "-") ? fopen(path, "wb") : stdout : NULL;

	err->code = LLMC_OK;
	if (!f) {
		err->code = data ? LLMC_E_IO : LLMC_E_MEMORY;
		snprintf(err->text, sizeof err->text,
		         data ? "%s: cannot write: %s" : "%s: out of memory", path,
		         strerror(errno));
		free(data);
		return err->code;
	}
	fwrite(page, 1, (size_t)(at - page), f);
	/* escape '<', so that the data cannot end its script element */
	for (const char *p = data; *p; p++)
		fputs(*p == '<' ? "\\u003c" : (char[]){ *p, 0 }, f);
	fputs(at + sizeof mark - 1, f);
	bool bad = ferror(f) != 0;
	if (f != stdout)
		bad |= fclose(f) != 0;
	free(data);
	if (bad) {
		err->code = LLMC_E_IO;
		snprintf(err->text, sizeof err->text, "%s: cannot write: %s", path,
		         strerror(errno));
	}
	return err->code;
}
