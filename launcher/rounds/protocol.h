/* The version of what agents say to each other: greeting, frames, messages and the record of a
 * witness. It grows with each change of any of them. */
#ifndef DT_LAUNCHER_ROUNDS_PROTOCOL_H
#define DT_LAUNCHER_ROUNDS_PROTOCOL_H

enum { PROTOCOL_VERSION = 15 };

#endif
