// The order of lines: a line comes after all that read it; of those that may come next, one of the
// scope that the last line is in, or of the nearest scope around it.

const DEEPEST_SCOPE = 12; // scopes in each other that count

const scopesOf = name => name.split("/").slice(0, -1).slice(0, DEEPEST_SCOPE);

function readingOrder(lines) {
  const producers = lines.map(line => {
    const read = new Set(line.sides.flatMap(side => side.edges.map(([producer]) => producer)));
    read.delete(line);
    return [...read];
  });
  const isRead = new Uint8Array(lines.length), readersToCome = new Int32Array(lines.length);
  for (const read of producers) for (const { number } of read) isRead[number] = 1;
  const rank = line => isRead[line.number] ? 2 : ["target", "output"].includes(line.end) ? 0 : 1;
  const starts = [...lines].sort((a, b) => rank(a) - rank(b));
  const reads = withoutReturns(producers, starts);
  for (const read of reads) for (const { number } of read) readersToCome[number]++;
  const ready = new ReadyLines(lines.length);
  starts.filter(line => !readersToCome[line.number]).reverse().forEach(line => ready.add(line));
  const order = [];
  while (order.length < lines.length) {
    const line = ready.take(order.at(-1));
    order.push(line);
    for (const producer of reads[line.number].reverse()) {
      if (!--readersToCome[producer.number]) ready.add(producer);
    }
  }
  return order;
}

// Lines that may come next, in a stack for each scope: a line is in those of all scopes around it.
class ReadyLines {
  constructor(count) {
    this.stacks = new Map(); // by scope
    this.around = new Map(); // by scope, the stacks of it and of all around it, outwards
    this.isTaken = new Uint8Array(count); // by number of the line
  }

  stackOf(scope) {
    return this.stacks.get(scope) || this.stacks.set(scope, []).get(scope);
  }

  stacksOf({ name }) {
    const scope = name.slice(0, name.lastIndexOf("/") + 1);
    if (!this.around.has(scope)) {
      const scopes = scopesOf(name), lengths = [...scopes.keys(), scopes.length].reverse();
      const names = lengths.map(length => scopes.slice(0, length).join("/"));
      this.around.set(scope, names.map(inner => this.stackOf(inner)));
    }
    return this.around.get(scope);
  }

  add(line) {
    for (const stack of this.stacksOf(line)) stack.push(line);
  }

  // Take the line that came last, of the scope that a line is in or the nearest around it.
  take(last) {
    const stacks = last ? this.stacksOf(last) : [this.stackOf("")];
    for (const stack of stacks) {
      while (stack.length && this.isTaken[stack.at(-1).number]) stack.pop();
    }
    const line = stacks.find(stack => stack.length).pop();
    this.isTaken[line.number] = 1;
    return line;
  }
}

// What lines read, without what leads back to a line on the path from a start: returns of loops.
function withoutReturns(reads, starts) {
  const [ON_PATH, DONE] = [1, 2];
  const forward = reads.map(() => []), state = new Uint8Array(reads.length), path = [];
  const enter = ({ number }) => {
    state[number] = ON_PATH;
    path.push([number, reads[number].values()]);
  };
  for (const start of starts) {
    if (!state[start.number]) enter(start);
    while (path.length) {
      const [number, rest] = path.at(-1), { value: producer } = rest.next();
      if (!producer) state[path.pop()[0]] = DONE;
      else if (state[producer.number] !== ON_PATH) {
        forward[number].push(producer);
        if (!state[producer.number]) enter(producer);
      }
    }
  }
  return forward;
}
