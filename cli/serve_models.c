/* Models of llmc serve: converts command line options to llmc_serve_model. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/serve_models.h"

/* Split NAME=PATH at the first '='. The whole string is a path if a '/' comes before the '=', or if
 * it is the name of a file. */
static const char *
split(const char *text, char **name)
{
	size_t n = strcspn(text, "=");

	*name = NULL;
	if (n == 0 || !text[n] || memchr(text, '/', n) || access(text, F_OK) == 0)
		return text;
	*name = strndup(text, n);
	return text + n + 1;
}

/* Log of engines that open while the server runs: only warnings are written to the request log. */
static void
warnings(void *user, int level, const char *line)
{
	const ServeModels *all = user;

	if (level == LLMC_LOG_WARNING)
		all->log(all->log_user, level, line);
}

static ServeModel *
add(ServeModels *all, const Common *c, const char *text)
{
	ServeModel *m = calloc(1, sizeof *m);
	ServeModel **list = realloc(all->model, (all->n + 1) * sizeof *list);

	if (list)
		all->model = list;
	if (!m || !list) {
		free(m);
		return NULL;
	}
	list[all->n++] = m;
	m->path = split(text, &m->name);
	m->common = *c;
	m->common.lora = NULL;
	return m;
}

/* Return the part of a name after hf:, hf.co/ or huggingface.co/; NULL: the name has none of these
 * prefixes. */
static const char *
repo_of(const char *name)
{
	return strncasecmp(name, "hf:", 3) == 0 ? name + 3 : text_after_hub(name);
}

/* Replace names of models by paths. Such a model is served under the name of its repository. */
static llmc_status
resolve(ServeModels *all, llmc_error *err)
{
	for (size_t i = 0; i < all->n; i++) {
		ServeModel *m = all->model[i];
		const char *repo = repo_of(m->path);
		if (!m->name && repo)
			m->name = strdup(repo);
		llmc_status s = model_path(&m->path, m->common.quiet, err);
		if (s == LLMC_OK && m->common.lora)
			s = model_path(&m->common.lora, m->common.quiet, err);
		if (s != LLMC_OK)
			return s;
	}
	return LLMC_OK;
}

int
serve_models(const Command *cmd, const Common *c, const char *first, const List *more,
             const List *loras, const char *model_name, ServeModels *all)
{
	const char *merged = NULL;
	size_t n_base;

	if (first && !add(all, c, first))
		return EXIT_MACHINE;
	for (size_t i = 0; i < more->n; i++)
		if (!add(all, c, more->v[i]))
			return EXIT_MACHINE;
	all->found.common = *c;
	all->found.common.lora = NULL;
	n_base = all->n;
	if (!n_base)
		return model_name || loras->n || c->weights || c->out_dir
		           ? opt_usage_error(cmd, NO_MODEL)
		           : 0;
	if (model_name && n_base > 1)
		return opt_usage_error(cmd, "--model-name works only with one model; name each of "
		                            "several with --model NAME=PATH");
	if (model_name && *model_name != ',') { /* further names follow a comma */
		free(all->model[0]->name);
		all->model[0]->name = strndup(model_name, strcspn(model_name, ","));
	}
	if (n_base > 1 && (c->weights || c->out_dir))
		return opt_usage_error(cmd, "%s goes with one model",
		                       c->weights ? "--weights" : "--artifact");
	for (size_t i = 0; i < loras->n; i++) {
		char *name;
		const char *dir = split(loras->v[i], &name);
		ServeModel *m;
		if (!name) {
			if (merged)
				return opt_usage_error(
				    cmd, "--lora: only one adapter can be merged into the weights; "
				         "name further ones with --lora NAME=DIR");
			merged = dir;
			continue;
		}
		if (n_base > 1)
			return opt_usage_error(cmd, "--lora NAME=DIR works only with one model");
		m = add(all, c, all->model[0]->path);
		if (!m)
			return EXIT_MACHINE;
		free(m->name);
		m->name = name;
		m->path = all->model[0]->path;
		m->common.lora = dir;
		m->adapter = true;
	}
	if (merged && all->n > 1)
		return opt_usage_error(
		    cmd, "--lora DIR works only with one model; with several use --lora NAME=DIR");
	all->model[0]->common.lora = merged ? merged : all->model[0]->common.lora;
	llmc_error err = { 0 };
	return resolve(all, &err) == LLMC_OK ? 0 : fail_with(&err);
}

/* Set the options of a model. all: receives its warnings. */
static llmc_status
set_options(ServeModels *all, ServeModel *m, const llmc_engine_options *eo, const llmc_limits *lim,
            llmc_serve_model *out, llmc_error *err)
{
	m->limits = *lim;
	m->engine = *eo;
	m->engine.limits = &m->limits;
	llmc_status status = options_of(&m->common, false, &m->options, err);
	if (status != LLMC_OK)
		return status;
	m->options.o.log = warnings;
	m->options.o.log_user = all;
	*out = LLMC_INIT(llmc_serve_model);
	out->name = m->name;
	out->path = m->path;
	out->options = &m->options.o;
	out->engine_options = &m->engine;
	return LLMC_OK;
}

llmc_status
serve_models_init(ServeModels *all, const llmc_engine_options *eo, const llmc_limits *first,
                  const llmc_limits *others, bool slots, llmc_error *err)
{
	all->init = calloc(all->n + 1, sizeof *all->init);
	if (!all->init) {
		snprintf(err->text, sizeof err->text, "out of memory");
		return err->code = LLMC_E_MEMORY;
	}
	for (size_t i = 0; i < all->n; i++) {
		ServeModel *m = all->model[i];
		const char *adapter = m->adapter && slots ? m->common.lora : NULL;
		m->common.lora = adapter ? NULL : m->common.lora;
		llmc_status status =
		    set_options(all, m, eo, i == 0 || (m->adapter && slots) ? first : others,
		                &all->init[i], err);
		if (status != LLMC_OK)
			return status;
		all->init[i].adapter = adapter;
	}
	return set_options(all, &all->found, eo, others, &all->found_init, err);
}

void
serve_models_free(ServeModels *all)
{
	for (size_t i = 0; i < all->n; i++) {
		free(all->model[i]->name);
		free(all->model[i]->options.set);
		free(all->model[i]);
	}
	free(all->found.options.set);
	free(all->model);
	free(all->init);
}
