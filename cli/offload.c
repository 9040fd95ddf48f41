/* --offload, --n-cpu-moe and --override-tensor: converts them to overrides of `placement`, which
 * divides a model between a GPU and the CPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static bool
has_offload(const Common *c)
{
	return c->offload.n || c->n_cpu_moe || c->override_tensor.n;
}

const char *
offload_device(const Common *c)
{
	return !c->device && has_offload(c) ? "cuda" : c->device;
}

static llmc_status
bad(llmc_error *err, const char *rule, const char *why)
{
	snprintf(err->text, sizeof err->text,
	         "--offload %.60s: %s; expected auto alone, a number of layers for the GPU, or a "
	         "part that runs on the CPU: layers=0-3, experts, experts=0-3 or embedding",
	         rule, why);
	return err->code = LLMC_E_INPUT;
}

static bool
is_auto(const Common *c)
{
	return c->offload.n == 1 && !c->n_cpu_moe && !c->override_tensor.n &&
	       !strcmp(c->offload.v[0], "auto");
}

/* Write the override of a rule to `out`. */
static llmc_status
override_of(const char *rule, char *out, size_t cap, llmc_error *err)
{
	const size_t n = strcspn(rule, "=");
	const char *layers = rule[n] ? rule + n + 1 : NULL;

	if (*rule && rule[strspn(rule, "0123456789")] == 0)
		snprintf(out, cap, "placement.gpu_layers=%s", rule);
	else if (strlen(rule) > 90)
		return bad(err, rule, "too long");
	else if (layers && !*layers)
		return bad(err, rule, "no layers after the =");
	else if (!strcmp(rule, "embedding"))
		snprintf(out, cap, "placement.cpu.embedding=true");
	else if (n == 6 && !strncmp(rule, "layers", n) && layers)
		snprintf(out, cap, "placement.cpu.layers=%s", layers);
	else if (n == 7 && !strncmp(rule, "experts", n))
		snprintf(out, cap, "placement.cpu.experts=%s", layers ? layers : "all");
	else
		return bad(err, rule, "unknown");
	return LLMC_OK;
}

/* Write the override for the rules of --override-tensor as a quoted YAML string. */
static llmc_status
tensors_of(const Common *c, char out[MAX_OVERRIDES], llmc_error *err)
{
	size_t n = (size_t)snprintf(out, MAX_OVERRIDES, "placement.tensors='");

	for (size_t i = 0; i < c->override_tensor.n; i++) {
		const char *rule = c->override_tensor.v[i];
		if (n + 2 * strlen(rule) + 3 > MAX_OVERRIDES) {
			snprintf(err->text, sizeof err->text,
			         "--override-tensor %.60s...: the rules are too long", rule);
			return err->code = LLMC_E_INPUT;
		}
		if (i)
			out[n++] = ',';
		for (; *rule; rule++) {
			out[n++] = *rule;
			if (*rule == '\'')
				out[n++] = *rule;
		}
	}
	out[n++] = '\'';
	out[n] = 0;
	return LLMC_OK;
}

llmc_status
offload_set(const Common *c, OpenOptions *own, const char **set, size_t *n, llmc_error *err)
{
	size_t k = 0;

	if (!has_offload(c) && !c->memory[1])
		return LLMC_OK;
	if (!has_offload(c)) {
		snprintf(err->text, sizeof err->text,
		         "--memory: the second size is the host's, for a model that --offload "
		         "divides");
		return err->code = LLMC_E_INPUT;
	}
	if (strncmp(offload_device(c), "cuda", 4) != 0) {
		snprintf(err->text, sizeof err->text,
		         "%s divides a model between a GPU and the CPU, but %s is %s",
		         c->offload.n   ? "--offload"
		         : c->n_cpu_moe ? "--n-cpu-moe"
		                        : "--override-tensor",
		         c->device_option ? c->device_option : "--device", c->device);
		return err->code = LLMC_E_INPUT;
	}
	if (is_auto(c)) {
		if (!*c->placed.text) {
			snprintf(
			    err->text, sizeof err->text,
			    "--offload auto chooses for the first model of a command line; name "
			    "what runs on the CPU: --offload N, experts or layers=0-3");
			return err->code = LLMC_E_INPUT;
		}
		snprintf(own->placed[0], sizeof own->placed[0], "placement.gpu_layers=%d",
		         c->placed.gpu_layers);
		snprintf(own->placed[1], sizeof own->placed[1], "placement.cpu.moe_layers=%d",
		         c->placed.moe_layers);
		set[(*n)++] = own->placed[0];
		set[(*n)++] = own->placed[1];
		return LLMC_OK;
	}
	for (; k < c->offload.n; k++) {
		if (k + 2 == MAX_OFFLOAD)
			return bad(err, c->offload.v[k], "too many rules");
		llmc_status status =
		    override_of(c->offload.v[k], own->placed[k], sizeof own->placed[k], err);
		if (status != LLMC_OK)
			return status;
		set[(*n)++] = own->placed[k];
	}
	if (c->n_cpu_moe) {
		snprintf(own->placed[k], sizeof own->placed[k], "placement.cpu.moe_layers=%d",
		         c->n_cpu_moe);
		set[(*n)++] = own->placed[k];
	}
	if (!c->override_tensor.n)
		return LLMC_OK;
	set[(*n)++] = own->tensors;
	return tensors_of(c, own->tensors, err);
}

double
offload_host_bandwidth(const Common *c)
{
	static const double SECONDS = 0.2;

	return c->host_bandwidth > 0 ? (double)c->host_bandwidth * 1e9
	                             : llmc_bandwidth(c->threads, SECONDS);
}

bool
offload_must_choose(const Common *c)
{
	return is_auto(c) && !*c->placed.text;
}
