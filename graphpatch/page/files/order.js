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
  const isRead = new Set(producers.flat()), readersToCome = new Int32Array(lines.length);
  const rank = line => isRead.has(line) ? 2 : ["target", "output"].includes(line.end) ? 0 : 1;
  const starts = [...lines].sort((a, b) => rank(a) - rank(b));
  const reads = withoutReturns(producers, starts);
  for (const { number } of reads.flat()) readersToCome[number]++;

  // Lines that may come next, in a stack for each scope: a line is in those of all around it.
  const stacks = new Map(), stacksAround = new Map(), isTaken = new Uint8Array(lines.length);
  const stackOf = scope => stacks.get(scope) || stacks.set(scope, []).get(scope);
  const stacksOf = ({ name }) => { // that of its own scope first
    const scope = name.slice(0, name.lastIndexOf("/") + 1);
    if (!stacksAround.has(scope)) {
      const scopes = ["", ...scopesOf(name).map((_, at, all) => all.slice(0, at + 1).join("/"))];
      stacksAround.set(scope, scopes.reverse().map(stackOf));
    }
    return stacksAround.get(scope);
  };
  const add = line => stacksOf(line).forEach(stack => stack.push(line));
  starts.filter(line => !readersToCome[line.number]).reverse().forEach(add);
  const order = [];
  for (let around = [stackOf("")]; order.length < lines.length; around = stacksOf(order.at(-1))) {
    for (const stack of around) {
      while (stack.length && isTaken[stack.at(-1).number]) stack.pop();
    }
    const line = around.find(stack => stack.length).pop();
    isTaken[line.number] = 1;
    order.push(line);
    for (const producer of reads[line.number].reverse()) {
      if (!--readersToCome[producer.number]) add(producer);
    }
  }
  return order;
}

// What lines read, without what leads back to a line on the path from a start: returns of loops.
// From each line, all that it reads is finished before it, but for these.
function withoutReturns(reads, starts) {
  const isEntered = new Uint8Array(reads.length), finished = new Int32Array(reads.length);
  const path = [...starts].reverse();
  for (let count = 0; path.length;) {
    const { number } = path.at(-1);
    if (!isEntered[number]) {
      isEntered[number] = 1;
      for (const producer of reads[number].toReversed()) {
        if (!isEntered[producer.number]) path.push(producer);
      }
    } else if (path.pop() && !finished[number]) finished[number] = ++count;
  }
  return reads.map(
    (read, at) => read.filter(({ number }) => finished[number] < finished[at]));
}
