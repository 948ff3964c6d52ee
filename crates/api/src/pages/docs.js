"use strict";
// Draws the documentation from openapi.json. Text only ever goes in as text, never as markup.
(() => {
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const cell = (tag, ...children) => make(tag, {}, ...children);
  const anchor = (operation) => "op-" + operation.operationId;

  const resolver = (spec) => (node) => {
    for (let hops = 0; node && node.$ref && hops < 10; hops += 1) {
      node = node.$ref.slice(2).split("/").reduce((at, key) => at && at[key], spec);
    }
    return node || {};
  };

  const describe = (schema, resolve) => {
    const plain = resolve(schema);
    const kind = [plain.type ?? (plain.oneOf ? "one of several" : "any")].flat().join(" or ");
    const notes = [];
    const bound = (least, most, unit) => {
      if (least !== undefined || most !== undefined) notes.push(`${least ?? 0}–${most ?? "∞"}${unit}`);
    };
    if (plain.format) notes.push(plain.format);
    bound(plain.minLength, plain.maxLength, " characters");
    bound(plain.minimum, plain.maximum, "");
    bound(plain.minItems, plain.maxItems, " items");
    if (plain.enum) notes.push(plain.enum.join(" | "));
    if (plain.default !== undefined) notes.push("default " + JSON.stringify(plain.default));
    return notes.length ? `${kind} (${notes.join("; ")})` : kind;
  };

  const rows = (schema, resolve, path, depth, out) => {
    const plain = resolve(schema);
    const required = plain.required || [];
    for (const [name, property] of Object.entries(plain.properties || {})) {
      const inner = resolve(property);
      const full = path ? `${path}.${name}` : name;
      out.push(make("tr", {},
        cell("td", cell("code", full), required.includes(name) ? " *" : ""),
        cell("td", describe(property, resolve)),
        cell("td", property.description || inner.description || "")));
      if (depth < 4) {
        rows(inner, resolve, full, depth + 1, out);
        if (inner.items) rows(inner.items, resolve, full + "[]", depth + 1, out);
      }
    }
    if (plain.items && depth === 0) rows(plain.items, resolve, "[]", 1, out);
    for (const choice of plain.oneOf || []) rows(choice, resolve, path, depth + 1, out);
    return out;
  };

  const table = (heads, body) => make("div", { class: "scroll" },
    make("table", {}, cell("thead", cell("tr", ...heads.map((head) => make("th", { scope: "col" }, head)))),
      cell("tbody", ...body)));

  const example = (media) => media && media.example !== undefined
    ? cell("pre", typeof media.example === "string" ? media.example : JSON.stringify(media.example, null, 2)) : "";

  const contents = (content, resolve) => Object.entries(content || {}).flatMap(([kind, media]) => {
    const fields = rows(media.schema || {}, resolve, "", 0, []);
    return [cell("p", cell("code", kind)), example(media),
      fields.length ? table(["field (* required)", "type", "meaning"], fields) : ""];
  });

  const whom = (operation) => {
    const schemes = (operation.security || []).flatMap((need) => Object.keys(need));
    if (!schemes.length) return "Open to everybody.";
    const scope = operation["x-scope"];
    return "Needs " + [...new Set(schemes)].join(" or ") + (scope ? `, scope ${scope}` : "") + ".";
  };

  const draw = (path, method, operation, resolve) => {
    const section = make("section", { class: "route", id: anchor(operation) },
      cell("h3", make("span", { class: "method " + method }, method.toUpperCase()), " " + path),
      cell("p", make("strong", {}, operation.summary || "")),
      cell("p", operation.description || ""),
      make("p", { class: "soft" }, whom(operation)));
    const parameters = (operation.parameters || []).map(resolve);
    if (parameters.length) {
      section.append(cell("h4", "Parameters"), table(["name", "in", "type", "meaning"], parameters.map((parameter) =>
        make("tr", {}, cell("td", cell("code", parameter.name), parameter.required ? " *" : ""),
          cell("td", parameter.in), cell("td", describe(parameter.schema || {}, resolve)),
          cell("td", parameter.description || "")))));
    }
    if (operation.requestBody) {
      section.append(make("details", {}, cell("summary", "Body"), ...contents(resolve(operation.requestBody).content, resolve)));
    }
    for (const [status, answer] of Object.entries(operation.responses || {})) {
      const plain = resolve(answer);
      section.append(make("details", {}, cell("summary", `${status} ${plain.description || ""}`), ...contents(plain.content, resolve)));
    }
    return section;
  };

  const codes = (spec) => {
    const list = make("dl", {});
    for (const { code, title } of spec["x-error-codes"] || []) list.append(make("dt", { id: code }, code), cell("dd", title));
    return [make("h2", { id: "codes" }, "Error codes"), list];
  };

  const show = (spec) => {
    const resolve = resolver(spec);
    const nav = document.getElementById("nav");
    const content = document.getElementById("content");
    content.replaceChildren(cell("h1", spec.info.title), cell("p", spec.info.description || ""));
    for (const tag of spec.tags || []) {
      nav.append(cell("h2", tag.name));
      content.append(cell("h2", tag.name), cell("p", tag.description || ""));
      for (const [path, item] of Object.entries(spec.paths)) {
        for (const [method, operation] of Object.entries(item)) {
          if (!(operation.tags || []).includes(tag.name)) continue;
          nav.append(make("a", { href: "#" + anchor(operation) }, make("span", { class: "method " + method }, method.toUpperCase()), " " + path));
          content.append(draw(path, method, operation, resolve));
        }
      }
    }
    nav.append(cell("h2", "Also"), make("a", { href: "#codes" }, "Error codes"));
    content.append(...codes(spec));
    if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
  };

  document.getElementById("find").addEventListener("input", (event) => {
    const wanted = event.target.value.trim().toLowerCase();
    for (const part of document.querySelectorAll("section.route, dt, dd")) {
      part.hidden = wanted !== "" && !part.textContent.toLowerCase().includes(wanted);
    }
  });

  fetch("openapi.json").then((answer) => answer.json()).then(show).catch(() => {
    document.getElementById("state").textContent = "openapi.json could not be read.";
  });
})();
