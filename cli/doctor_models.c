/* Checks which descriptions of configs/ fit this machine. They are part of the library. Each is
 * planned without weights, as stored and quantised, and the plan is compared with the free
 * memory. */
#include "cli/doctor_models.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/embed.h"
#include "cli/cli.h"

/* Return NAME for configs/NAME.yaml; NULL for another file. */
static const char *
model_name(const char *path, char name[64])
{
	size_t n = strlen(path);

	if (strncmp(path, "configs/", 8) != 0 || strchr(path + 8, '/') || n < 14 || n - 13 >= 64 ||
	    strcmp(path + n - 5, ".yaml") != 0 || !strcmp(path, "configs/pretokenizers.yaml") ||
	    !strcmp(path, "configs/tiny.yaml"))
		return NULL;
	snprintf(name, 64, "%.*s", (int)(n - 13), path + 8);
	return name;
}

/* Plan a description as stored (quantize NULL) or quantised. Returns an object; NULL if this is not
 * possible. */
static json_t *
plan_form(const char *path, const char *quantize, double *params)
{
	Common c = { .quiet = true, .quantize = quantize };
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	llmc_limits lim = LLMC_INIT(llmc_limits);
	llmc_memory mem = LLMC_INIT(llmc_memory);
	llmc_fitted fitted = LLMC_INIT(llmc_fitted);
	llmc_error err = { 0 };
	llmc_model *m = NULL;
	json_t *out = NULL;

	if (open_model(&c, path, true, &m, &err) == LLMC_OK) {
		llmc_info(m, &info);
		*params = (double)info.n_params;
		bool fits = llmc_fit_limits(m, &lim, 0, &fitted, &err) == LLMC_OK;
		lim.context = 1;
		if (llmc_memory_for(m, &lim, &mem, &err) == LLMC_OK)
			out = json_pack("{s:I, s:i}", "weight_bytes", (json_int_t)mem.weights,
			                "context", fits ? fitted.limits.context : 0);
	}
	llmc_close(m);
	return out;
}

static json_t *
plan_model(const char *folder, const char *embedded, const char *name)
{
	char path[600];
	size_t n;
	double params = 0;
	const char *text = embed_find(embedded, &n);

	snprintf(path, sizeof path, "%s/%s.yaml", folder, name);
	FILE *f = fopen(path, "w");
	if (!f)
		return NULL;
	bool ok = fwrite(text, 1, n, f) == n;
	ok = fclose(f) == 0 && ok;
	json_t *stored = ok ? plan_form(path, NULL, &params) : NULL,
	       *q4 = stored ? plan_form(path, "q4_k", &params) : NULL;
	unlink(path);
	return json_pack("{s:s, s:f, s:o*, s:o*}", "name", name, "params", params, "stored", stored,
	                 "q4_k", q4);
}

json_t *
doctor_models(void)
{
	const char *tmp = getenv("TMPDIR"), *path;
	char folder[512], name[64];
	json_t *out = json_array();
	int n =
	    snprintf(folder, sizeof folder, "%s/llmc-doctor.XXXXXX", tmp && *tmp ? tmp : "/tmp");

	if (!out || n >= (int)sizeof folder || !mkdtemp(folder)) {
		json_decref(out);
		return NULL;
	}
	for (size_t i = 0; (path = embed_path(i)) != NULL; i++)
		if (model_name(path, name))
			json_array_append_new(out, plan_model(folder, path, name));
	rmdir(folder);
	return out;
}

static void
print_form(const json_t *form)
{
	char bytes[32], cell[64];
	const json_int_t context = json_integer_value(json_object_get(form, "context"));

	human_bytes(json_number_value(json_object_get(form, "weight_bytes")), bytes);
	if (!form)
		snprintf(cell, sizeof cell, "-");
	else if (context)
		snprintf(cell, sizeof cell, "%s, %lld positions", bytes, (long long)context);
	else
		snprintf(cell, sizeof cell, "%s, too large", bytes);
	printf("  %-30s", cell);
}

void
doctor_models_print(const json_t *models)
{
	const json_t *m;
	size_t i;

	printf("models of configs/ and the context that fits in free memory, as stored and with "
	       "--quantize q4_k\n");
	json_array_foreach ((json_t *)(uintptr_t)models, i, m) {
		printf("  %-18s %6.1fB", json_string_value(json_object_get(m, "name")),
		       json_number_value(json_object_get(m, "params")) / 1e9);
		print_form(json_object_get(m, "stored"));
		print_form(json_object_get(m, "q4_k"));
		printf("\n");
	}
}
