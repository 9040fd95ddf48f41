/* Models that a server may open although its command line does not name them: models of a folder
 * (llmc_serve_options.models_dir) and downloaded models (models_pulled; see llmc_pulled).
 *
 * Each call reads the folder again, so files may be added and removed while the server runs. A
 * request that names such a model creates a slot, and the manager thread then reads the model's
 * description. */
#ifndef LLMC_SERVE_MODELS_CATALOGUE_H
#define LLMC_SERVE_MODELS_CATALOGUE_H

#include <time.h>

#include "serve/models/model.h"

typedef struct FoundModel {
	char *name, *path;
	int64_t bytes; /* size of its files */
	time_t modified;
} FoundModel;

typedef struct FoundModels {
	FoundModel *at;
	size_t n, cap;
	bool failed; /* out of memory */
} FoundModels;

/* List the models on the disk, sorted by name, each name once. The call may wait for the disk.
 * Release it with catalogue_free. */
FoundModels catalogue_list(const Server *s);
void catalogue_free(FoundModels *list);
/* Return an entry by its name, with or without "hf:" and ":latest"; NULL: unknown. */
const FoundModel *catalogue_entry(const FoundModels *list, const char *name);
/* Can clients use models that the server was not started with? */
bool catalogue_is_on(const Server *s);

/* Return the slot of a name. It is created if the catalogue has the name; NULL with a Problem if
 * not. The call may wait for the disk. Lock not held. */
Slot *models_find_or_add(Server *s, const char *name, Problem *p);

/* Return the slot of the catalogue's only model, for requests without a name; NULL with a Problem.
 */
Slot *models_only(Server *s, Problem *p);

#endif
